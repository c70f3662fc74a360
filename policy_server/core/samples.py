"""What happened at the engine, as told by the access log, observed streams and load reports."""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.core.outcome import LeaseEnd
from policy_server.core.value import value


@value(frozen=True, slots=True)
class Completion:
    """The end of one answer, as the access log tells it.

    status          HTTP status from the upstream; 0 = there was none
    client_gone     the client hung up before the end
    reached_upstream  False when the request left before it was sent on
    first_byte_s, last_byte_s  seconds from the first upstream byte sent (None = never came)
    timed_here      these two are by our own clock, not by Envoy's
    streamed        the answer's type is one of streams, whatever the request said
    """

    status: int
    client_gone: bool = False
    reached_upstream: bool = True
    first_byte_s: float | None = None
    last_byte_s: float | None = None
    timed_here: bool = False
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts that the answer itself carries; `completion_tokens` those of all `choices`,
    which the engine made side by side."""

    prompt_tokens: int
    completion_tokens: int
    choices: int = 1


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine says of itself. None = not said. Fractions in 0..1, counts in requests.

    asked_seats, asked_rps  what it asks for: at most so many requests at once, so many per second
    age_s    seconds since it said so
    scraped  read from its own page; such reports are whole, so others don't count beside them
    """

    waiting: float | None = None
    running: float | None = None
    kv_used: float | None = None
    preemptions_total: float | None = None
    asked_seats: float | None = None
    asked_rps: float | None = None
    age_s: float = 0.0
    scraped: bool = False

    @property
    def tells_load(self) -> bool:
        """Whether it says how full the engine is."""
        figures = (self.waiting, self.running, self.kv_used, self.preemptions_total)
        return any(figure is not None for figure in figures)

    @property
    def asks(self) -> bool:
        """Whether it asks for less."""
        return self.asked_seats is not None or self.asked_rps is not None


def how_it_ended(completion: Completion) -> LeaseEnd:
    """What the end of an answer means for its lease."""
    if completion.client_gone:
        reached = completion.reached_upstream
        return LeaseEnd.CLIENT_CANCELLED if reached else LeaseEnd.NEVER_SENT
    if not completion.reached_upstream and completion.status == 0:
        return LeaseEnd.NEVER_SENT
    if completion.status == 429 or completion.status >= 500 or completion.status == 0:
        return LeaseEnd.UPSTREAM_ERROR
    return LeaseEnd.COMPLETED
