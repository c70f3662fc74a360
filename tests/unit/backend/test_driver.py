"""The driver's schedule, with a clock and a timer of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from policy_server.backend.driver import MAX_LAG_S, EngineDriver
from policy_server.backend.engine import Engine, Sequence, Step
from policy_server.backend.params import EngineParams


class FakeTimers:
    """One clock; `run_until` fires timers in order, each `late_s` after it was due."""

    def __init__(self) -> None:
        self.now = 100.0
        self.late_s = 0.0
        self.pending: list[FakeTimer] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self, self.now + delay_s, callback)
        self.pending.append(timer)
        return timer

    def run_until(self, end_s: float) -> None:
        while self.pending:
            timer = min(self.pending, key=lambda t: t.due_s)
            if timer.due_s + self.late_s > end_s:
                break
            self.pending.remove(timer)
            self.now = max(self.now, timer.due_s + self.late_s)
            timer.callback()
        self.now = max(self.now, end_s)


class FakeTimer:
    def __init__(self, owner: FakeTimers, due_s: float, callback: Callable[[], None]) -> None:
        self.owner, self.due_s, self.callback = owner, due_s, callback

    def cancel(self) -> None:
        if self in self.owner.pending:
            self.owner.pending.remove(self)


class Bench:
    """A driver of 10 ms steps (100 tokens/s for one sequence) and what it delivered when."""

    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.delivered: list[float] = []
        params = EngineParams(step_ms=10, seq_ms=0, prefill_tps=1e12)
        self.engine: Engine[Sequence] = Engine(params)
        self.driver = EngineDriver(
            self.engine, self._deliver, lambda: self.timers.now, self.timers.call_later
        )

    def _deliver(self, _step: Step[Sequence], sequences: list[Sequence]) -> None:
        self.delivered.extend(self.timers.now for _ in sequences)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_idle_engine_starts_at_once_and_sleeps_when_done(bench: Bench) -> None:
    bench.driver.submit(Sequence(4, 2))
    bench.timers.run_until(101.0)
    assert bench.delivered == pytest.approx([100.01, 100.02])
    assert not bench.timers.pending


def test_a_loop_that_is_always_late_does_not_stretch_the_steps(bench: Bench) -> None:
    bench.timers.late_s = 0.004
    bench.driver.submit(Sequence(4, 1000))
    bench.timers.run_until(105.0)
    assert len(bench.delivered) == pytest.approx(500, abs=2)


def test_it_never_delivers_before_a_step_is_due(bench: Bench) -> None:
    bench.driver.submit(Sequence(4, 1000))
    bench.timers.run_until(101.0)
    dues = [100.0 + 0.01 * (i + 1) for i in range(len(bench.delivered))]
    assert all(at >= due - 0.0006 for at, due in zip(bench.delivered, dues, strict=True))


def test_a_short_hiccup_is_made_up_and_a_long_one_is_given_up(bench: Bench) -> None:
    bench.driver.submit(Sequence(4, 10_000))
    bench.timers.run_until(101.0)
    bench.timers.now += MAX_LAG_S / 2
    bench.timers.run_until(102.0)
    assert len(bench.delivered) == pytest.approx(200, abs=2)
    assert bench.driver.lost_s == 0
    bench.timers.now += 3.0
    bench.timers.run_until(106.0)
    assert bench.driver.lost_s == pytest.approx(3.0, abs=0.02)
    assert len(bench.delivered) == pytest.approx(300, abs=3)


def test_a_stall_silences_the_step_under_way(bench: Bench) -> None:
    bench.driver.submit(Sequence(4, 1000))
    bench.timers.run_until(101.0)
    before = len(bench.delivered)
    bench.driver.stall(5.0)
    bench.timers.run_until(105.9)
    assert len(bench.delivered) == before
    bench.timers.run_until(107.0)
    assert len(bench.delivered) == pytest.approx(before + 100, abs=3)


def test_a_stall_of_an_idle_engine_hits_the_next_request(bench: Bench) -> None:
    bench.driver.stall(2.0)
    bench.driver.submit(Sequence(4, 1))
    bench.timers.run_until(110.0)
    assert bench.delivered == pytest.approx([102.01])
