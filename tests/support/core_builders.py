"""Short ways to say what a core test is about: requests, pools, a coin that falls as told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from policy_server.core.admission import Admission
from policy_server.core.events import Event
from policy_server.core.params import ClassParams, LimitParams, PoolParams, RoomParams
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion

P0, P1, P2 = Priority.P0, Priority.P1, Priority.P2

OK = Completion(200, first_byte_s=0.1, last_byte_s=1.0)
CLIENT_LEFT = Completion(200, client_gone=True)
NEVER_SENT = Completion(0, client_gone=True, reached_upstream=False)
UPSTREAM_503 = Completion(503)

E = TypeVar("E", bound=Event)


class Coin:
    """A source of "random" numbers that always gives the same one."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def request(
    uid: str,
    priority: Priority = P1,
    *,
    at: float = 0.0,
    budget_s: float = 15.0,
    pool: str = "chat",
    **facts: Any,
) -> Request:
    """A request that arrived at `at` and may wait `budget_s`."""
    return Request(uid, pool, priority, at, at + budget_s, **facts)


def pool_params(
    limit: float | LimitParams = 4.0,
    *,
    name: str = "chat",
    shares: tuple[float, float, float] = (0.6, 0.2, 0.05),
    room: RoomParams | None = None,
    **more: Any,
) -> PoolParams:
    """A pool with a fixed limit, unless a whole `LimitParams` is given."""
    if not isinstance(limit, LimitParams):
        limit = LimitParams("fixed", initial=limit)
    budgets = (5.0, 15.0, 45.0)
    classes: Mapping[Priority, ClassParams] = {
        p: ClassParams(budgets[p], shares[p]) for p in Priority
    }
    return PoolParams(name, limit, classes, room or RoomParams(), **more)


def admission(*pools: PoolParams, coin: float = 0.5) -> Admission:
    """An admission over `pools`; by default one pool "chat" with four seats."""
    return Admission(pools or (pool_params(),), Coin(coin))


def only(kind: type[E], events: Iterable[Event]) -> list[E]:
    """The events of one kind, in order."""
    return [e for e in events if isinstance(e, kind)]


def uids(events: Iterable[Event]) -> list[str]:
    """Whom these events are about, in order."""
    return [e.request.uid for e in events if hasattr(e, "request")]


def run_timers(gate: Admission, now: float, until: float) -> list[Event]:
    """Do what falls due in (now, until], each at its moment."""
    events: list[Event] = []
    while (due := gate.next_timer()) is not None and due <= until:
        now = max(now, due)
        events += gate.handle_timer(now)
    return events
