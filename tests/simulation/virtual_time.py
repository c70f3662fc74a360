"""An asyncio loop on a virtual clock, and the asyncio driver as a gate of the simulator."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from policy_server.core.events import Event
from policy_server.core.request import Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.driver import Driver, Hold
from policy_server.simulate.gate import CoreGate
from policy_server.simulate.gateway import Gateway
from policy_server.simulate.loop import Action, Loop


class JumpingSelector(selectors.SelectSelector):
    """Never waits: the clock jumps to the next timer."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self._jump(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual; timers fire in order, at exactly their time, without waiting."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(JumpingSelector(self._jump))
        # asyncio runs what is due before now + resolution, so 0 would never run anything.
        self._clock_resolution = 1e-12

    def time(self) -> float:
        return self._virtual_now

    def _jump(self, timeout: float) -> None:
        due = self._scheduled[0]._when if self._scheduled else self._virtual_now + timeout
        self.advance(due)

    def advance(self, when: float) -> None:
        """Timers within the resolution fire together; each one runs at its own time."""
        self._virtual_now = max(self._virtual_now, when)


class AsyncioLoop(Loop):
    """The simulator's loop on top of an asyncio loop."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._asyncio = loop
        super().__init__()

    @property
    def now(self) -> float:
        return self._asyncio.time()

    @now.setter
    def now(self, value: float) -> None:
        """The asyncio loop owns the time."""

    def at(self, when: float, action: Action) -> None:
        """Asyncio runs what is due at one moment in any order; here it is first come, first."""
        when = max(when, self.now)
        self._order += 1
        heappush(self._heap, (when, self._order, action))
        self._asyncio.call_at(when, self._next)

    def _next(self) -> None:
        when, _, action = heappop(self._heap)
        self._asyncio.advance(when)
        action()


class DriverGate:
    """The driver behind the gate's interface: its events reach the gateway as its own do."""

    def __init__(self, driver: Driver, core: CoreGate) -> None:
        self._driver, self._core = driver, core
        self._holds: dict[str, Hold] = {}
        self._collected: list[Event] | None = None
        self.gateway: Gateway | None = None
        driver.listen(self._hear)

    def _hear(self, event: Event, now: float) -> None:
        if self._collected is not None:
            self._collected.append(event)
        elif self.gateway is not None:
            self.gateway.obey([event])

    def _during(self, call: Callable[[], None]) -> list[Event]:
        self._collected = []
        call()
        events, self._collected = self._collected, None
        return events

    def submit(self, request: Request, now: float) -> list[Event]:
        def call() -> None:
            decision = self._driver.submit(request)
            if isinstance(decision, Hold):
                self._holds[request.uid] = decision

        return self._during(call)

    def cancel(self, uid: str, now: float) -> list[Event]:
        return self._during(lambda: self._driver.leave(self._holds[uid]))

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        return self._during(lambda: self._driver.complete(uid, completion))

    def handle_timer(self, now: float) -> list[Event]:
        raise AssertionError("the driver has its own timer")

    def next_timer(self) -> float | None:
        return None

    def first_token(self, uid: str, now: float) -> None:
        self._core.first_token(uid, now)

    def tokens(self, uid: str, count: int, now: float) -> None:
        self._core.tokens(uid, count, now)

    def usage(self, uid: str, usage: Usage) -> None:
        self._driver.usage(uid, usage)

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        self._driver.heartbeat(uid, node)

    def load_report(self, pool: str, source: str, report: LoadReport, now: float) -> None:
        self._driver.load_report(pool, source, report)

    def limit_now(self) -> float:
        return self._core.limit_now()

    def waiting_now(self) -> Sequence[int]:
        return self._core.waiting_now()

    def leases_now(self) -> int:
        return self._core.leases_now()

    def learned_now(self) -> dict[str, float]:
        return self._core.learned_now()
