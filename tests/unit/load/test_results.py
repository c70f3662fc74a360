"""Windows, percentiles, and the sum that has to come out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from policy_server.load.attempt import Attempt, End
from policy_server.load.params import LoadParams
from policy_server.load.results import Quantiles, Window, build_report, nearest_rank
from policy_server.load.tally import Record, Tally
from policy_server.load.workload import Arrival


def record(at_s: float, ended_s: float, end: End = End.SERVED, priority: str = "0") -> Record:
    return Record(Arrival(at_s, priority, "", 10), end, 1, ended_s, tokens=10, ttft_s=0.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0], (1, 1, 1)), ([1.0, 2.0], (1, 2, 2)), (list(range(1, 101)), (50, 90, 99))],
)
def test_percentiles_are_nearest_rank(values: Sequence[float], expected: tuple[float, ...]) -> None:
    found = Quantiles.of(values)
    assert (found.p50, found.p90, found.p99) == expected
    assert nearest_rank([], 0.5) is None


def test_goodput_counts_only_what_was_completed_inside_the_window() -> None:
    records = [
        record(1, 3),  # scheduled and done before the window
        record(4, 6),  # done inside
        record(6, 9),  # scheduled and done inside
        record(9, 12),  # done too late
        record(7, 8, End.INCOMPLETE),
    ]
    window = Window.of(records, 5.0, 10.0)
    assert window.goodput_rps == pytest.approx(2 / 5)
    assert window.goodput_tps == pytest.approx(20 / 5)
    assert window.total.sent == 3
    assert window.total.ends["incomplete"] == 1


def test_every_request_is_in_exactly_one_count() -> None:
    records = [record(1, 2, end, str(i % 3)) for i, end in enumerate(End)]
    window = Window.of(records, 0.0, 10.0)
    assert sum(window.total.ends.values()) == window.total.sent == len(End)
    assert sum(summary.sent for summary in window.classes.values()) == len(End)


def test_refusals_and_errors_are_counted_by_reason() -> None:
    tally = Tally()
    arrival = Arrival(0.0, "2", "", 10)
    good = {"x-policy-reason": "room_full", "retry-after": "1", "retry-after-ms": "900"}
    tally.on_attempt(arrival, Attempt(End.SHED, 429, good), 0.5)
    tally.on_attempt(arrival, Attempt(End.SHED, 429, {}), 1.5)
    tally.on_attempt(arrival, Attempt(End.SERVER_ERROR, 503, good), 1.6)
    tally.on_attempt(arrival, Attempt(End.SERVER_ERROR, 503, {}), 1.7)
    tally.on_attempt(arrival, Attempt(End.ERROR, error="ClientOSError: gone"), 1.8)
    report = build_report(LoadParams("http://x", 1, 2), tally, 2.0, 0.0)
    assert report.refusals == {
        "P2": {"429 room_full": 1, "429 no x-policy-reason": 1, "503 room_full": 1}
    }
    assert (report.refused_attempts, report.malformed) == (3, 1)
    assert report.errors == {"HTTP 503": 1, "ClientOSError: gone": 1}
    assert [second.shed for second in report.timeline] == [1, 2, 0]
