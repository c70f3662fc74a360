"""The loop-lag probe on a loop whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from policy_server.telemetry.lag import INTERVAL_S, LagProbe


class FakeTimer:
    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """A loop that runs each timer `late_s` after it was due."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timer: FakeTimer | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object], /) -> FakeTimer:
        self.timer = FakeTimer(self.now + delay, callback)
        return self.timer

    def turn(self, late_s: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            assert self.timer is not None
            self.now = self.timer.due + late_s
            if not self.timer.cancelled:
                self.timer.callback()


class Probed:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.readings: list[float] = []
        self.probe = LagProbe(self.loop, self.readings.append)
        self.probe.start()


@pytest.fixture
def probed() -> Probed:
    return Probed()


def test_every_reading_is_observed(probed: Probed) -> None:
    probed.loop.turn(late_s=0.003)
    probed.loop.turn(late_s=0.0)
    assert probed.readings == pytest.approx([0.003, 0.0])


def test_an_overdue_timer_counts_before_it_ran(probed: Probed) -> None:
    probed.loop.now += INTERVAL_S + 0.3
    assert probed.probe.current_s == pytest.approx(0.3)


def test_a_stopped_probe_is_silent(probed: Probed) -> None:
    probed.loop.turn(late_s=0.01)
    probed.probe.stop()
    probed.loop.turn(late_s=5.0)
    assert len(probed.readings) == 1
    assert probed.probe.current_s == pytest.approx(0.01)


def test_starting_twice_is_starting_once(probed: Probed) -> None:
    timer = probed.loop.timer
    probed.probe.start()
    assert probed.loop.timer is timer


async def test_it_runs_on_the_real_loop() -> None:
    read = asyncio.Event()
    probe = LagProbe(asyncio.get_running_loop(), lambda seconds: read.set())
    probe.start()
    await asyncio.wait_for(read.wait(), timeout=30)
    probe.stop()
