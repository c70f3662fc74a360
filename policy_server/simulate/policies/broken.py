"""The product with one thing broken on purpose: controls for what only it can get wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policy_server.core.events import Admitted, Event
from policy_server.core.request import Request
from policy_server.core.samples import Completion
from policy_server.simulate.gate import POOL, CoreGate


class ForgetfulGate(CoreGate):
    """A restart starts from nothing."""

    def restore(self, waiting: Iterable[Request], now: float) -> list[Event]:
        """No places."""
        return []

    def restore_learned(self, state: Mapping[str, Mapping[str, float]], now: float) -> None:
        """No limit, no baselines."""


class LeakyGate(CoreGate):
    """Never hears of a client that hung up, and takes its request to be under way for ever."""

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """Only whole answers end a lease."""
        return [] if completion.client_gone else super().complete(uid, completion, now)

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        """Every lease seems alive."""
        for lease in list(self.pool(POOL).leases):
            super().heartbeat(lease.request.uid, node, now)


class GullibleGate(CoreGate):
    """Takes a broken-off answer for a whole one, so that its short time becomes a sample."""

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """Everything is a success."""
        taken = completion.last_byte_s
        whole = Completion(200, first_byte_s=completion.first_byte_s or taken, last_byte_s=taken)
        return super().complete(uid, whole, now)


def _sent_again(request: Request) -> bool:
    """Envoy sends a held request again after a crash: it arrives later than it first did."""
    return request.arrived > request.arrived_wall


class DeafGate(CoreGate):
    """Takes a request that is sent again for a duplicate, and never answers it."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """Only what is new."""
        return [] if _sent_again(request) else super().submit(request, now)


class DoublingGate(CoreGate):
    """Sends a request that is sent again to the engine twice."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """At once, and once more."""
        events = super().submit(request, now)
        if _sent_again(request):
            go = Admitted(request, 0.0, queued=False, observe=False)
            events += [go, go]
        return events
