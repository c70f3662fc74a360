"""Load reports and asks, as the whole core obeys them."""

from __future__ import annotations

import pytest

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, Event, LimitChanged, Shed, Waiting
from policy_server.core.limit.base import WindowSample
from policy_server.core.limit.baselines import Baselines
from policy_server.core.limit.reports import REPORT_FRESH_S
from policy_server.core.limit.window import Window
from policy_server.core.outcome import ShedReason
from policy_server.core.params import LimitParams
from policy_server.core.samples import LoadReport
from tests.support.core_builders import OK, P0, P2, admission, only, pool_params, request, uids


def closed(*reports: tuple[str, LoadReport], at: float = 1.0, end: float = 2.0) -> WindowSample:
    """The sample of a window in which these reports came at `at`."""
    window = Window(Baselines(), 0.0)
    for source, report in reports:
        window.load_report(source, report, at)
    return window.close(end, 0, 16.0)


def test_the_queues_of_all_replicas_add_up() -> None:
    sample = closed(("a", LoadReport(waiting=3)), ("b", LoadReport(waiting=4)))
    assert sample.engine_queue == 7


def test_beside_scraped_pages_answers_do_not_count_twice() -> None:
    sample = closed(
        ("http://a/metrics", LoadReport(waiting=3, scraped=True)),
        ("10.0.0.1:80", LoadReport(waiting=3, kv_used=0.99)),
    )
    assert sample.engine_queue == 3
    assert not sample.saturated


def test_when_the_pages_stop_the_answers_count_again() -> None:
    window = Window(Baselines(), 0.0)
    window.load_report("page", LoadReport(waiting=9, scraped=True), 0.0)
    window.load_report("answer", LoadReport(waiting=2), REPORT_FRESH_S)
    assert window.close(REPORT_FRESH_S, 0, 16.0).engine_queue == 2


@pytest.mark.parametrize(
    "report",
    [
        LoadReport(waiting=500, kv_used=1.0, preemptions_total=7, age_s=REPORT_FRESH_S),
        LoadReport(waiting=500, kv_used=1.0, age_s=1e9),
    ],
)
def test_an_old_word_is_no_word(report: LoadReport) -> None:
    sample = closed(("a", report))
    assert sample.engine_queue is None
    assert not sample.saturated


def test_a_word_that_came_late_does_not_undo_a_newer_one() -> None:
    sample = closed(("a", LoadReport(waiting=1)), ("a", LoadReport(waiting=99, age_s=0.5)))
    assert sample.engine_queue == 1


def admit(gate: Admission, count: int, at: float, first: int = 0) -> list[Event]:
    events: list[Event] = []
    for number in range(first, first + count):
        events += gate.submit(request(f"r{number}", at=at), at)
    return events


def ask(gate: Admission, at: float, **what: float) -> None:
    gate.load_report("chat", "10.0.0.1:80", LoadReport(**what), at)  # type: ignore[arg-type]


def test_asked_for_four_at_once_no_more_than_four_go() -> None:
    gate = admission(pool_params(16.0))
    ask(gate, 0.0, asked_seats=4)
    events = admit(gate, 10, 0.0)
    assert len(only(Admitted, events)) == 4
    assert len(only(Waiting, events)) == 6
    assert only(Admitted, gate.submit(request("p0", P0), 0.0)) == []  # the reserve is not above it
    assert len(only(Admitted, gate.complete("r0", OK, 1.0))) == 1


def test_what_is_in_flight_drains_to_the_ask() -> None:
    gate = admission(pool_params(8.0))
    admit(gate, 12, 0.0)
    ask(gate, 1.0, asked_seats=2)
    for number in range(6):
        assert only(Admitted, gate.complete(f"r{number}", OK, 2.0)) == []
    assert len(only(Admitted, gate.complete("r6", OK, 2.0))) == 1


def test_after_the_ask_the_limit_is_what_it_was() -> None:
    gate = admission(pool_params(LimitParams("vegas", initial=16.0)))
    ask(gate, 0.0, asked_seats=4)
    admit(gate, 6, 0.0)
    moves = only(LimitChanged, gate.handle_timer(10.0))
    assert [move.change.limit for move in moves] == [16.0]
    assert gate.pool("chat").limit_now(500.0) == 16.0


def test_a_rate_releases_the_waiting_one_by_one() -> None:
    gate = admission(pool_params(100.0))
    ask(gate, 0.0, asked_rps=2.0)
    assert only(Admitted, admit(gate, 5, 0.0)) == []
    moments = []
    now = 0.0
    while len(moments) < 5:
        due = gate.next_timer()
        assert due is not None
        now = max(now, due)
        moments += [now] * len(only(Admitted, gate.handle_timer(now)))
    assert moments == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5], abs=1e-6)


def test_a_rate_makes_the_predicted_wait_true() -> None:
    gate = admission(pool_params(1000.0))
    ask(gate, 0.0, asked_rps=1.0)
    events: list[Event] = []
    for number in range(60):
        events += gate.submit(request(f"r{number}", P2, budget_s=45.0), 0.0)
    refused = only(Shed, events)
    assert {shed.reason for shed in refused} == {ShedReason.PREDICTED_WAIT}
    # n + 1.9·√(n − 1) ≤ .9 · 45 s at one per second
    assert len(only(Waiting, events)) == 30
    assert all(shed.retry_after_s >= 1 for shed in refused)


def test_an_ask_of_a_pool_without_requests_is_kept() -> None:
    gate = admission(pool_params(16.0))
    ask(gate, 0.0, asked_seats=1)
    assert uids(only(Admitted, admit(gate, 3, 5.0))) == ["r0"]


def test_an_ask_that_is_over_an_hour_old_asks_for_nothing() -> None:
    gate = admission(pool_params(16.0))
    ask(gate, 5000.0, asked_seats=1, age_s=4000.0)
    assert len(only(Admitted, admit(gate, 3, 5000.0))) == 3
