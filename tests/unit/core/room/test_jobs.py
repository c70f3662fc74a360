"""The line of the jobs: classes, fair turns, order of arrival, returns and withdrawals."""

from __future__ import annotations

import random

import pytest

from policy_server.core.request import Kind, Priority, Request
from policy_server.core.room import jobs
from policy_server.core.room.jobs import JobLines
from tests.support.core_builders import P0, P1, P2, request


def job(uid: str, at: float = 0.0, priority: Priority = P1, tenant: str = "") -> Request:
    return request(uid, priority, at=at, kind=Kind.JOB, tenant=tenant)


def drained(lines: JobLines) -> list[str]:
    order = []
    while len(lines):
        uid = lines.head().uid
        assert lines.withdraw(uid) is not None
        order.append(uid)
    return order


def lines_of(*some: Request) -> JobLines:
    lines = JobLines()
    for one in some:
        lines.push(one)
    return lines


def test_classes_first_then_arrival() -> None:
    lines = lines_of(job("c", 0.0, P2), job("b", 1.0), job("b2", 2.0), job("a", 3.0, P0))
    assert lines.counts() == [1, 2, 1]
    assert drained(lines) == ["a", "b", "b2", "c"]


def test_tenants_take_turns() -> None:
    lines = lines_of(*(job(f"big{i}", float(i), tenant="big") for i in range(50)))
    for i in range(3):
        lines.push(job(f"small{i}", 50.0 + i, tenant="small"))
    order = []
    while len(lines):
        head = lines.head()
        lines.withdraw(head.uid)
        lines.charge(head, 100.0, 60.0)
        order.append(head.uid)
    assert {"small0", "small1", "small2"} <= set(order[:7])
    assert [uid for uid in order if uid.startswith("big")] == [f"big{i}" for i in range(50)]


def test_a_job_that_comes_back_stands_before_those_who_came_later() -> None:
    lines = lines_of(job("b", 2.0), job("c", 3.0), job("d", 4.0))
    lines.push(job("a", 1.0))
    lines.push(job("b2", 2.5))
    assert drained(lines) == ["a", "b", "b2", "c", "d"]


def test_withdrawn_jobs_are_passed_by() -> None:
    lines = lines_of(*(job(str(i), float(i)) for i in range(10)))
    for uid in ("0", "3", "4", "9"):
        assert lines.withdraw(uid) is not None
        assert uid not in lines
    assert lines.withdraw("3") is None
    assert drained(lines) == ["1", "2", "5", "6", "7", "8"]
    assert lines._lines == {}


def test_a_uid_waits_once() -> None:
    lines = lines_of(job("a"))
    with pytest.raises(ValueError, match="waits already"):
        lines.push(job("a"))


def test_nobody_waits() -> None:
    with pytest.raises(IndexError):
        JobLines().head()


def test_who_comes_and_leaves_behind_others_fills_no_memory() -> None:
    lines = lines_of(job("first"))
    for i in range(10_000):
        lines.push(job(f"u{i}", 1.0 + i))
        assert lines.withdraw(f"u{i}") is not None
    assert sum(map(len, lines._lines.values())) < 200
    for i in range(1_000):
        lines.push(job(f"v{i}", 20_000.0 + i))
    for i in range(0, 1_000, 10):
        assert lines.withdraw(f"v{i}") is not None
    assert drained(lines) == ["first", *(f"v{i}" for i in range(1_000) if i % 10)]
    assert not lines._lines
    assert not lines._gone


@pytest.mark.parametrize("sweep_from", [0, jobs.SWEEP_FROM])
def test_whatever_the_order_of_calls_each_job_leaves_once_and_in_order(
    sweep_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SWEEP_FROM", sweep_from)
    rng = random.Random(7)
    lines, waiting, at = JobLines(), {}, 0.0
    for step in range(5_000):
        at += 1.0
        if waiting and rng.random() < 0.5:
            uid = rng.choice([lines.head().uid, rng.choice(list(waiting))])
            assert lines.withdraw(uid) == waiting.pop(uid)
        else:
            arrived = at if rng.random() < 0.8 else rng.uniform(0.0, at)
            one = job(f"u{step}", arrived, rng.choice([P0, P1, P2]), rng.choice("abc"))
            waiting[one.uid] = one
            lines.push(one)
        assert len(lines) == len(waiting) == sum(lines.counts())
        if waiting:
            head = lines.head()
            line = [r for r in waiting.values() if r.tenant == head.tenant]
            line = [r for r in line if r.priority == head.priority]
            assert head.arrived == min(r.arrived for r in line)
            assert head.priority == min(r.priority for r in waiting.values())
