"""What an operator reads from /metrics."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    LeaseEnded,
    LimitChanged,
    Shed,
    Waiting,
)
from policy_server.core.limit.base import Change, Reason
from policy_server.core.outcome import LeaseEnd, Outcome, ShedReason
from policy_server.core.request import Kind, Priority, Request
from policy_server.telemetry.metrics import Metrics
from policy_server.telemetry.views import PoolView


def request(
    priority: Priority = Priority.P1, *, returning: bool = False, kind: Kind = Kind.HELD
) -> Request:
    return Request(
        uid="u",
        pool="chat",
        priority=priority,
        arrived=0.0,
        deadline=15.0,
        returning=returning,
        invited=returning,
        kind=kind,
    )


class Scraped:
    """A `Metrics` that was fed some events, and its values by name and labels."""

    def __init__(self, *events: Event, views: tuple[PoolView, ...] = ()) -> None:
        self.metrics = Metrics("1.2.3", ["chat"], lambda: views)
        for event in events:
            self.metrics.on_event(event, now=100.0)

    def __call__(self, name: str, **labels: str) -> float | None:
        if "cls" in labels:
            labels["class"] = labels.pop("cls")
        return self.metrics.registry.get_sample_value(name, labels)


def test_each_request_counts_once_under_its_outcome() -> None:
    scraped = Scraped(
        Admitted(request(), wait_s=0.0, queued=False, observe=True),
        Waiting(request(), predicted_wait_s=1.0),
        Admitted(request(), wait_s=2.0, queued=True, observe=False),
        Shed(request(Priority.P2), ShedReason.ROOM_FULL, 7.0, wait_s=0.0, evicted=False),
        Cancelled(request(Priority.P0), wait_s=1.0),
    )
    total = "policy_requests_total"
    assert scraped(total, pool="chat", cls="P1", outcome="admitted") == 1
    assert scraped(total, pool="chat", cls="P1", outcome="queued_admitted") == 1
    assert scraped(total, pool="chat", cls="P2", outcome="shed") == 1
    assert scraped(total, pool="chat", cls="P0", outcome="cancelled") == 1
    assert scraped("policy_shed_total", pool="chat", cls="P2", reason="room_full") == 1
    assert scraped("policy_retry_after_seconds_sum", pool="chat", cls="P2") == 7.0


def test_a_resent_request_and_a_dispatched_job_are_not_second_requests() -> None:
    scraped = Scraped(
        Admitted(request(), wait_s=0.0, queued=False, observe=True, resent=True),
        Admitted(request(kind=Kind.JOB), wait_s=3600.0, queued=True, observe=True),
    )
    for outcome in ("admitted", "queued_admitted"):
        assert scraped("policy_requests_total", pool="chat", cls="P1", outcome=outcome) == 0
    assert scraped("policy_wait_seconds_count", pool="chat", cls="P1") == 0


def test_the_error_of_the_forecast_is_that_of_those_who_waited() -> None:
    scraped = Scraped(
        Admitted(request(), wait_s=4.0, queued=True, observe=False, predicted_wait_s=6.5),
        Admitted(request(), wait_s=0.0, queued=False, observe=False),
    )
    error = "policy_wait_prediction_error_seconds"
    assert scraped(f"{error}_count", pool="chat", cls="P1") == 1
    within = {
        le: scraped(f"{error}_bucket", pool="chat", cls="P1", le=le) for le in ("-5.0", "-2.0")
    }
    assert within == {"-5.0": 0, "-2.0": 1}


def test_series_of_a_known_pool_start_at_zero() -> None:
    scraped = Scraped()
    assert scraped("policy_requests_total", pool="chat", cls="P0", outcome="shed") == 0
    assert scraped("policy_shed_total", pool="chat", cls="P0", reason="deadline") == 0


def test_outcomes_that_the_core_never_sees() -> None:
    scraped = Scraped()
    scraped.metrics.count(Outcome.PASSED)
    scraped.metrics.count(Outcome.INVALID, pool="chat", priority=Priority.P1)
    assert scraped("policy_requests_total", pool="", cls="", outcome="passed") == 1
    assert scraped("policy_requests_total", pool="chat", cls="P1", outcome="invalid") == 1


def test_a_pool_added_by_a_reload_appears_with_its_first_event() -> None:
    scraped = Scraped(
        LimitChanged("new", previous=16.0, change=Change(20.0, Reason.GROW)),
    )
    assert scraped("policy_limit_changes_total", pool="new", reason="grow") == 1


def test_a_held_limit_is_no_change() -> None:
    scraped = Scraped(LimitChanged("chat", previous=16.0, change=Change(16.0, Reason.HOLD)))
    assert b'reason="hold"' not in scraped.metrics.render()


def test_returning_clients_are_counted_by_whether_the_promise_held() -> None:
    back = request(returning=True)
    claims = replace(back, invited=False)
    scraped = Scraped(
        Admitted(claims, wait_s=0.0, queued=False, observe=True),
        Shed(claims, ShedReason.PREDICTED_WAIT, 9.0, wait_s=0.0, evicted=False),
        Admitted(back, wait_s=0.0, queued=False, observe=True),
        Shed(back, ShedReason.PREDICTED_WAIT, 9.0, wait_s=0.0, evicted=False),
        Shed(back, ShedReason.PREDICTED_WAIT, 55.0, wait_s=0.0, evicted=False, capped=True),
    )
    counts = {k: scraped("policy_returns_total", pool="chat", kept=k) for k in ("yes", "no")}
    assert counts == {"yes": 1, "no": 1}
    assert scraped("policy_returns_total", pool="chat", kept="capped") == 1


def test_a_lease_that_ended_tells_its_latencies() -> None:
    scraped = Scraped(
        LeaseEnded(request(), LeaseEnd.COMPLETED, held_s=3.0, ttft_s=0.2, tpot_s=0.03),
        LeaseEnded(request(), LeaseEnd.EXPIRED, held_s=900.0),
    )
    assert scraped("policy_ttft_seconds_bucket", pool="chat", le="0.25") == 1
    assert scraped("policy_ttft_seconds_count", pool="chat") == 1
    assert scraped("policy_tpot_seconds_count", pool="chat") == 1
    assert scraped("policy_leases_expired_total", pool="chat") == 1


def test_gauges_are_read_from_the_pool_at_scrape_time() -> None:
    view = PoolView(
        name="chat",
        limit=40.5,
        inflight_seats=38,
        inflight_requests=30,
        waiting={Priority.P2: 7},
        jobs_waiting={Priority.P1: 2, Priority.P2: 3},
        engine_queue=1.5,
    )
    scraped = Scraped(views=(view,))
    assert scraped("policy_limit", pool="chat") == 40.5
    assert scraped("policy_inflight", pool="chat") == 38
    assert scraped("policy_waiting", pool="chat", cls="P2") == 7
    assert scraped("policy_waiting", pool="chat", cls="P0") == 0
    assert scraped("policy_jobs_waiting", pool="chat") == 5
    assert scraped("policy_engine_queue", pool="chat") == 1.5


def test_the_scrape_names_the_build_and_leaves_creation_times_out() -> None:
    page = Scraped().metrics.render()
    assert b'policy_build_info{version="1.2.3"} 1.0' in page
    assert b"_created" not in page


def test_totals_list_what_happened_for_people() -> None:
    scraped = Scraped(
        Admitted(request(), wait_s=0.0, queued=False, observe=True),
        Shed(request(Priority.P2), ShedReason.DEADLINE, 7.0, wait_s=0.0, evicted=True),
        Admitted(request(returning=True), wait_s=0.0, queued=False, observe=True),
    )
    assert scraped.metrics.totals() == {
        "chat": {
            "outcomes": {"P1 admitted": 2, "P2 shed": 1},
            "sheds": {"P2 deadline": 1},
            "returns": {"yes": 1},
        }
    }
