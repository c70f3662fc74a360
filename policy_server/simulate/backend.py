"""What a simulated model server offers to the gateway, and the answer that it works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from policy_server.core.samples import LoadReport


@dataclass(slots=True, eq=False)
class Answer:
    """One answer in the making. Token counts ≥ 1; times are virtual seconds, None = not yet.

    The fields after `output` belong to the engine that works on it.
    """

    uid: str
    prompt: int
    output: int
    model: str = ""
    replica: int = 0
    sent_at: float = 0.0
    first_token_at: float | None = None
    done: bool = False
    prefill_left: int = 0
    produced: int = 0  # tokens that were out before the present run (a preemption ends a run)
    joined: int = 0  # step counter of the engine when `produced` was right
    run: int = 0  # which run of the answer; stale heap entries carry an older one


class Sink(Protocol):
    """Who hears of the engine's progress."""

    def first_token(self, answer: Answer) -> None:
        """The first token is out."""
        ...

    def finished(self, answer: Answer) -> None:
        """The last token is out."""
        ...

    def failed(self, answer: Answer) -> None:
        """The engine died under it: the gateway answers 503."""
        ...


class Backend(Protocol):
    """One model server."""

    def submit(self, answer: Answer) -> None:
        """Start or queue it."""
        ...

    def cancel(self, answer: Answer) -> None:
        """Its client is gone."""
        ...

    def progress(self, answer: Answer) -> tuple[int, float]:
        """Tokens out so far, and when the last of them came."""
        ...

    def load(self) -> LoadReport:
        """What the engine says of itself at this moment."""
        ...

    def set_speed(self, factor: float) -> None:
        """Every step takes `factor` times its normal time (> 0)."""
        ...

    def set_slots(self, slots: int) -> None:
        """Change how many answers may be worked on at once (≥ 1)."""
        ...

    def stall(self, until: float) -> None:
        """Make no progress until then."""
        ...

    def kill(self) -> None:
        """Fail everything in progress; the engine is empty afterwards."""
        ...
