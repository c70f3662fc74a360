"""The gate of a simulated gateway: the production core, or another policy with the same face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policy_server.core.admission import Admission
from policy_server.core.events import Event
from policy_server.core.request import Request
from policy_server.core.samples import Completion, LoadReport, Usage

POOL = "default"
NODE = "envoy"
"""A simulated gateway is one Envoy with one pool."""


class Gate(Protocol):
    """What the gateway model calls; the subset of `core.admission.Admission` that it uses."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """A request arrives."""
        ...

    def cancel(self, uid: str, now: float) -> list[Event]:
        """Its client left while it waited."""
        ...

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """The access log says that its answer ended."""
        ...

    def handle_timer(self, now: float) -> list[Event]:
        """A timer is due."""
        ...

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called."""
        ...

    def first_token(self, uid: str, now: float) -> None:
        """An observed answer began."""
        ...

    def tokens(self, uid: str, count: int, now: float) -> None:
        """`count` more tokens of an observed answer."""
        ...

    def usage(self, uid: str, usage: Usage) -> None:
        """An observed answer told its token counts."""
        ...

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        """The access log says that an answer is under way."""
        ...

    def load_report(self, pool: str, source: str, report: LoadReport, now: float) -> None:
        """An engine says how it is."""
        ...

    def limit_now(self) -> float:
        """The limit, seats; infinity when there is none."""
        ...

    def waiting_now(self) -> Sequence[int]:
        """Waiting requests by class."""
        ...

    def learned_now(self) -> dict[str, float]:
        """Baselines and the like, by name."""
        ...

    def leases_now(self) -> int:
        """Slots that it believes to be in use, requests."""
        ...


class CoreGate(Admission):
    """The production core, readable."""

    def limit_now(self) -> float:
        """The limit, seats."""
        return self.pool(POOL).limit.current

    def waiting_now(self) -> Sequence[int]:
        """Waiting requests by class."""
        return self.pool(POOL).room.counts()

    def leases_now(self) -> int:
        """Slots that it believes to be in use, requests."""
        return self.inflight()

    def learned_now(self) -> dict[str, float]:
        """The baselines, seconds."""
        return self.pool(POOL).feedback.baselines.state()


class PlainGate:
    """A gate without timers, signals or memory; the controls derive from it."""

    def cancel(self, uid: str, now: float) -> list[Event]:
        """Nothing waits here."""
        return []

    def handle_timer(self, now: float) -> list[Event]:
        """There is none."""
        return []

    def next_timer(self) -> float | None:
        """There is none."""
        return None

    def first_token(self, uid: str, now: float) -> None:
        """Not used."""

    def tokens(self, uid: str, count: int, now: float) -> None:
        """Not used."""

    def usage(self, uid: str, usage: Usage) -> None:
        """Not used."""

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        """Not used."""

    def load_report(self, pool: str, source: str, report: LoadReport, now: float) -> None:
        """Not used."""

    def waiting_now(self) -> Sequence[int]:
        """Nothing waits here."""
        return (0, 0, 0)

    def leases_now(self) -> int:
        """It does not count."""
        return 0

    def learned_now(self) -> dict[str, float]:
        """Nothing is learned."""
        return {}


class DeadGate(PlainGate):
    """The policy server is down: nothing is answered, what is said to it is lost."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """Envoy will try again."""
        return []

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """A log entry that is written now is lost."""
        return []

    def limit_now(self) -> float:
        """Nobody knows."""
        return 0.0
