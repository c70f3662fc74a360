"""When the operator is told that the limit can't see."""

from __future__ import annotations

import pytest

from policy_server.telemetry.blind_spots import (
    REPORT_MEMORY_S,
    STRANGERS_MEMORY_S,
    BlindSpots,
)
from policy_server.telemetry.logs import MAX_VALUE_CHARS
from policy_server.telemetry.views import PoolView


def pool(leases: int = 0, limit_max: float | None = 1000) -> PoolView:
    return PoolView("llm", 16.0, leases, leases, leases=leases, limit_max=limit_max)


def test_told_at_the_start() -> None:
    (line,) = BlindSpots(told=True).warnings([pool()], asked=False, now=0.0)
    assert "pool llm: ext_authz without load reports" in line
    assert len(line) <= MAX_VALUE_CHARS, "a log line would cut it"


@pytest.mark.parametrize(("asked", "leases", "lines"), [(False, 1, 0), (True, 0, 0), (True, 1, 1)])
def test_otherwise_only_where_checks_take_slots(asked: bool, leases: int, lines: int) -> None:
    assert len(BlindSpots(told=False).warnings([pool(leases)], asked, 0.0)) == lines


def test_a_report_opens_the_eyes_for_a_while() -> None:
    spots = BlindSpots(told=True)
    spots.report_used("llm", 10.0)
    assert not spots.warnings([pool(1)], True, 10.0 + REPORT_MEMORY_S)
    assert spots.warnings([pool(1)], True, 11.0 + REPORT_MEMORY_S)
    assert not spots.warnings([pool()], True, 1000.0), "idle engines have nothing to report"


def test_a_fixed_limit_needs_no_eyes() -> None:
    assert not BlindSpots(told=True).warnings([pool(limit_max=None)], True, 0.0)


def test_requests_without_an_identity_are_told_while_they_come() -> None:
    spots = BlindSpots(told=False)
    assert spots.strangers(0, 0.0) == []
    (line,) = spots.strangers(3, 10.0)
    assert line.startswith("3 requests came without x-policy-uid")
    assert len(line) <= MAX_VALUE_CHARS, "a log line would cut it"
    assert spots.strangers(3, 10.0 + STRANGERS_MEMORY_S)
    assert spots.strangers(3, 11.0 + STRANGERS_MEMORY_S) == []
    assert spots.strangers(4, 400.0)
