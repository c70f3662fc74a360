"""Stands in for the driver: decides as the test says, and books who holds what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from policy_server.core.events import Admitted, Shed
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.driver import Hold, SupersededError


def admitted(request: Request, wait_s: float = 0.0, observe: bool = False) -> Admitted:
    """An admission."""
    return Admitted(request, wait_s, queued=wait_s > 0, observe=observe)


def shed(request: Request, reason: ShedReason = ShedReason.ROOM_FULL) -> Shed:
    """A refusal."""
    return Shed(request, reason, 2.5, 0.0, evicted=False)


Decide = Callable[[Request], Admitted | Shed | None]


@dataclass
class FakeGate:
    """`decide` answers a submit; None = hold. `leases` and `places` are what is held now."""

    decide: Decide = admitted
    lag: bool = False
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    places: dict[str, Hold] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    submitted: list[Request] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    completed: list[tuple[str, Completion]] = field(default_factory=list)
    heartbeats: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    observed: list[tuple[object, ...]] = field(default_factory=list)
    reports: list[tuple[str, str, LoadReport]] = field(default_factory=list)
    counted: list[tuple[str, Priority, Outcome]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds, looking again after each call."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def submit(self, request: Request) -> Admitted | Shed | Hold:
        self.submitted.append(request)
        self._supersede(request.uid)
        decision = self.decide(request)
        self.changed.set()
        if decision is None:
            hold = Hold(request.uid, asyncio.get_running_loop().create_future())
            self.places[request.uid] = hold
            return hold
        if isinstance(decision, Admitted):
            self.leases.add(request.uid)
        return decision

    def _supersede(self, uid: str) -> None:
        older = self.places.pop(uid, None)
        if older is not None and not older.future.done():
            older.future.set_exception(SupersededError(uid))

    def resolve(self, uid: str, decision: Admitted | Shed) -> None:
        """Decide for one that waits, as the driver would."""
        hold = self.places.pop(uid, None)
        if hold is None:
            return
        if hold.future.done():  # its client has just left
            return
        if isinstance(decision, Admitted):
            self.leases.add(uid)
        hold.future.set_result(decision)

    def leave(self, hold: Hold) -> None:
        if self.places.get(hold.uid) is hold:
            del self.places[hold.uid]
            self.left.append(hold.uid)
        self.changed.set()

    def owns(self, admitted: Admitted) -> bool:
        return admitted.request.uid in self.leases

    def never_sent(self, admitted: Admitted) -> None:
        uid = admitted.request.uid
        assert uid in self.leases, "a lease that is not held was given back"
        self.leases.remove(uid)
        self.unsent.append(uid)
        self.changed.set()

    def lagging(self) -> bool:
        return self.lag

    def knows(self, uid: str) -> bool:
        return uid in self.leases

    def complete(self, uid: str, completion: Completion) -> None:
        self.leases.discard(uid)
        self.completed.append((uid, completion))
        self.changed.set()

    def heartbeat(self, uid: str, node: str) -> None:
        self.heartbeats.append((uid, node))
        self.changed.set()

    def node_alive(self, node: str) -> None:
        self.nodes.append(node)
        self.changed.set()

    def tokens(self, uid: str, count: int) -> None:
        if count:
            self.observed.append(("tokens", uid, count))

    def unreadable(self, uid: str) -> None:
        self.observed.append(("unreadable", uid))
        self.changed.set()

    def usage(self, uid: str, usage: Usage) -> None:
        self.observed.append(("usage", uid, usage))
        self.changed.set()

    def load_report_for(self, uid: str, source: str, report: LoadReport) -> None:
        self.reports.append((uid, source, report))

    def leased(self, uid: str) -> Admitted | None:
        return None

    def count(
        self, pool: str, priority: Priority, outcome: Outcome, reason: ShedReason | None = None
    ) -> None:
        self.counted.append((pool, priority, outcome))
