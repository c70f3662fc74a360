"""Which decisions leave a line, and what bounds them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import structlog
from structlog.typing import FilteringBoundLogger

from policy_server.core.events import Admitted, Cancelled, Event, LeaseEnded, LimitChanged, Shed
from policy_server.core.limit.base import Change, Reason
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.telemetry.decision_log import DecisionLog, LogLimits


class Lines:
    """A decision log and the lines it wrote."""

    def __init__(self, limits: LogLimits | None = None) -> None:
        self.capture = structlog.testing.LogCapture()
        logger = structlog.wrap_logger(None, processors=[self.capture]).bind()
        self.log = DecisionLog(
            cast(FilteringBoundLogger, logger), lambda uid: f"req-of-{uid}", limits
        )

    def after(self, *events: Event, now: float = 0.0) -> list[dict[str, object]]:
        for event in events:
            self.log.on_event(event, now)
        found = cast(list[dict[str, object]], self.capture.entries[:])
        self.capture.entries.clear()
        return found


def request(priority: Priority = Priority.P1, uid: str = "u1") -> Request:
    return Request(uid=uid, pool="chat", priority=priority, arrived=0.0, deadline=15.0)


def why(uid: str = "u1") -> Shed:
    of_acme = replace(request(Priority.P2, uid), tenant="acme")
    return replace(shed(Priority.P2, uid), request=of_acme, predicted_wait_s=41.26)


def shed(priority: Priority = Priority.P2, uid: str = "u1") -> Shed:
    return Shed(request(priority, uid), ShedReason.DEADLINE, 7.25, wait_s=0.01234, evicted=True)


def limit(previous: float, to: float, reason: Reason = Reason.GROW) -> LimitChanged:
    return LimitChanged("chat", previous, Change(to, reason))


def test_a_shed_is_one_line_found_by_its_request_id() -> None:
    (line,) = Lines().after(why())
    assert line == {
        "event": "request",
        "log_level": "info",
        "uid": "u1",
        "request_id": "req-of-u1",
        "pool": "chat",
        "class": "P2",
        "outcome": "shed",
        "reason": "deadline",
        "wait_ms": 12.3,
        "retry_after_s": 7.2,
        "budget_s": 15.0,
        "predicted_wait_s": 41.3,
        "should_retry": True,
        "returning": False,
        "tenant": "acme",
    }


def test_a_storm_is_bounded_and_says_what_it_left_out() -> None:
    lines = Lines(LogLimits(sheds_per_s=3))
    storm = [shed(uid=str(n)) for n in range(10)]
    assert [line["uid"] for line in lines.after(*storm, now=5.0)] == ["0", "1", "2"]
    lines.log.tick(5.9)
    assert lines.after() == []
    lines.log.tick(6.0)
    (told,) = lines.after()
    assert (told["event"], told["class"], told["suppressed"]) == ("shed_suppressed", "P2", 7)
    assert len(lines.after(*storm, now=6.0)) == 3


def test_a_storm_of_p2_never_hides_a_p0() -> None:
    lines = Lines(LogLimits(sheds_per_s=1))
    storm = [shed(uid=str(n)) for n in range(10)]
    written = lines.after(*storm, shed(Priority.P0, uid="vip"))
    assert [line["uid"] for line in written] == ["0", "vip"]


def test_the_admitted_are_sampled_by_uid_and_bounded() -> None:
    admitted = [
        Admitted(request(uid=f"uid-{n}"), wait_s=0.5, queued=True, observe=True)
        for n in range(20_000)
    ]
    written = Lines(LogLimits(admitted_per_s=10**6)).after(*admitted)
    assert 100 < len(written) < 300  # 1 %
    assert written[0]["outcome"] == "queued_admitted"
    assert written[0]["wait_ms"] == 500.0
    assert len(Lines().after(*admitted)) == LogLimits().admitted_per_s


def test_every_kind_of_end_can_be_in_the_sample() -> None:
    everything = Lines(LogLimits(admitted_share=1.0))
    written = everything.after(
        Admitted(request(), wait_s=0.0, queued=False, observe=True),
        Cancelled(request(), wait_s=1.0),
        Admitted(request(), wait_s=0.0, queued=False, observe=True, resent=True),
    )
    assert [line["outcome"] for line in written] == ["admitted", "cancelled"]


def test_a_limit_is_told_when_it_moved_or_for_a_new_reason() -> None:
    lines = Lines()
    written = lines.after(
        limit(100, 101),  # the first reason
        limit(101, 104),
        limit(104, 107),  # 6 % above the last line
        limit(107, 105, Reason.QUEUE),
        limit(105, 105, Reason.HOLD),
    )
    assert [(line["limit"], line["reason"]) for line in written] == [
        (101, "grow"),
        (107, "grow"),
        (105, "queue"),
    ]


def test_an_expired_lease_is_a_warning_and_a_normal_end_is_silent() -> None:
    written = Lines().after(
        LeaseEnded(request(), LeaseEnd.COMPLETED, held_s=3.0),
        LeaseEnded(request(), LeaseEnd.EXPIRED, held_s=912.34),
    )
    (line,) = written
    assert (line["event"], line["log_level"], line["held_s"]) == ("lease_expired", "warning", 912.3)
