"""Runs the engine in real time: one timer, an absolute schedule.

A step begins when the one before was *due*, not when the event loop got round to it, so a late
loop does not stretch the steps that follow. It never delivers early, and a loop that is more than
MAX_LAG_S behind gives the rest up (counted in `lost_s`) instead of racing through it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, Protocol

from policy_server.backend.engine import Engine, SequenceT, Step

MAX_LAG_S = 0.25
"""Catching up further than this would be a burst that no engine makes."""

EARLY_S = 0.0005
"""Timers have a resolution of 1 ms: half of it early counts as due."""

MAX_STEPS_PER_TICK = 8
"""Steps made up for in a row before I/O gets its turn."""


class Timer(Protocol):
    """A timer that can be taken back, such as asyncio.TimerHandle."""

    def cancel(self) -> None:
        """Do not fire any more."""


CallLater = Callable[[float, Callable[[], None]], Timer]
Deliver = Callable[[Step[SequenceT], list[SequenceT]], None]


class EngineDriver(Generic[SequenceT]):
    """Owns the engine and its timer; every call belongs to one event loop.

    `deliver(step, sequences)` is called at the end of each step with the sequences that got a
    token. `clock` gives monotonic seconds; `call_later(seconds, callback)` starts a timer
    (default: the running event loop's).
    """

    def __init__(
        self,
        engine: Engine[SequenceT],
        deliver: Deliver[SequenceT],
        clock: Callable[[], float] = time.monotonic,
        call_later: CallLater | None = None,
    ) -> None:
        self.engine = engine
        self.lost_s = 0.0
        self._deliver = deliver
        self._clock = clock
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._step: Step[SequenceT] | None = None
        self._timer: Timer | None = None
        self._stall_s = 0.0

    def submit(self, sequence: SequenceT) -> None:
        """Queue a sequence; an idle engine begins a step at once. ValueError: it can never fit."""
        now = self._clock()
        self.engine.submit(sequence, now)
        if self._step is None:
            self._begin(now)
            self._arm()

    def cancel(self, sequence: SequenceT) -> None:
        """The client has gone: the slot is free at the next step."""
        self.engine.cancel(sequence)

    def stall(self, seconds: float) -> None:
        """Stop for `seconds`: in the step under way, or in the next one when idle."""
        if self._step is None:
            self._stall_s += seconds
            return
        self._step.duration_s += seconds
        self._arm()

    def close(self) -> None:
        """Stop the timer. What still runs gets no more tokens."""
        self._step = None
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, at_s: float) -> None:
        self._step = self.engine.begin(at_s)
        if self._step is not None and self._stall_s:
            self._step.duration_s += self._stall_s
            self._stall_s = 0.0

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._step is not None:
            delay_s = max(0.0, self._step.due_s - self._clock())
            self._timer = self._call_later(delay_s, self._tick)

    def _tick(self) -> None:
        for _ in range(MAX_STEPS_PER_TICK):
            step, now = self._step, self._clock()
            if step is None or now < step.due_s - EARLY_S:
                break
            self._deliver(step, self.engine.end(step))
            self._begin(self._next_begin(step.due_s, now))
        self._arm()

    def _next_begin(self, due_s: float, now: float) -> float:
        behind_s = now - due_s
        if behind_s <= MAX_LAG_S:
            return due_s
        self.lost_s += behind_s
        return now
