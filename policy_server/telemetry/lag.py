"""Is the event loop late? Everything here runs on one loop, so its lag is everyone's wait.

A timer asks to be called every 20 ms; how late the call comes is the lag. What follows from it is
judged in `overload`.

`current_s` also counts a timer that is overdue right now, so a handler that runs in the middle of
a long batch sees the lag before the timer itself gets its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

INTERVAL_S = 0.02  # 50 calls/s cost the loop 0.02 %


class Timer(Protocol):
    """A scheduled call (`asyncio.TimerHandle`)."""

    def cancel(self) -> None:
        """Never run it."""
        ...


class Loop(Protocol):
    """The two methods of an asyncio loop that the probe needs."""

    def time(self) -> float:
        """Monotonic seconds."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        """Run `callback` in `delay` seconds or as soon as the loop comes to it."""
        ...


class LagProbe:
    """Measures the lag of `loop` from `start()` to `stop()`; `observe` gets each reading, s."""

    def __init__(self, loop: Loop, observe: Callable[[float], None]) -> None:
        self._loop = loop
        self._observe = observe
        self._timer: Timer | None = None
        self._due = 0.0
        self._last_s = 0.0

    def start(self) -> None:
        """Begin; a second call changes nothing."""
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        """End; the last reading stays readable."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def current_s(self) -> float:
        """Seconds by which the loop is late: the last reading, or an overdue one."""
        if self._timer is None:
            return self._last_s
        return max(self._last_s, self._loop.time() - self._due)

    def _schedule(self) -> None:
        self._due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._read)

    def _read(self) -> None:
        self._last_s = max(0.0, self._loop.time() - self._due)
        self._schedule()
        self._observe(self._last_s)
