"""What happened at the engine, as told by the access log, observed streams and load reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of one answer, as the access log tells it.

    status          HTTP status from the upstream; 0 = there was none
    client_gone     the client hung up before the end
    reached_upstream  False when the request left before it was sent on
    first_byte_s, last_byte_s  seconds from the first upstream byte sent (None = never came)
    """

    status: int
    client_gone: bool = False
    reached_upstream: bool = True
    first_byte_s: float | None = None
    last_byte_s: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts that the answer itself carries."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine says of itself. None = not said. Fractions in 0..1, counts in requests."""

    waiting: float | None = None
    running: float | None = None
    kv_used: float | None = None
    preemptions_total: float | None = None
