"""What the core tells the outside: values, in the order in which they happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from policy_server.core.limit.base import Change
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.request import Request
from policy_server.core.value import value


@value(frozen=True, slots=True)
class Waiting:
    """Entered the room; `predicted_wait_s` is None while no drain rate is known."""

    request: Request
    predicted_wait_s: float | None


@value(frozen=True, slots=True)
class Admitted:
    """May go now and holds a lease. `observe`: its answer is in the observed sample.

    `predicted_wait_s`: Ŵ when it entered the room, None when it did not or nothing was known.
    """

    request: Request
    wait_s: float
    queued: bool
    observe: bool
    resent: bool = False
    predicted_wait_s: float | None = None


@value(frozen=True, slots=True)
class Shed:
    """Refused (`evicted` False) or taken out of the room (`evicted` True).

    `predicted_wait_s`: Ŵ at that moment, None while no drain rate is known.
    """

    request: Request
    reason: ShedReason
    retry_after_s: float
    wait_s: float
    evicted: bool
    should_retry: bool = True
    capped: bool = False
    predicted_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Its client left while it waited."""

    request: Request
    wait_s: float


@dataclass(frozen=True, slots=True)
class Prolonged:
    """Waits on past its budget, because no back end is ready: `request` with the new one."""

    request: Request


@dataclass(frozen=True, slots=True)
class Lapsed:
    """It waited before a restart and did not come back: its client has left."""

    request: Request


@value(frozen=True, slots=True)
class LeaseEnded:
    """A slot came back. `held_s` counts from the dispatch."""

    request: Request
    how: LeaseEnd
    held_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The window closed and moved the limit; `previous` in seats."""

    pool: str
    previous: float
    change: Change


Event = Waiting | Admitted | Shed | Cancelled | Prolonged | Lapsed | LeaseEnded | LimitChanged
"""Everything that the admission core emits."""
EVENTS: tuple[type[Event], ...] = get_args(Event)
