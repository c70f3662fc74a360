"""Which answers are observed: a coin at admission, so that the sample is unbiased.

    p = M / (m · S)   with M the budget of messages per second, m the messages that one observed
                      stream sends per second (measured), S the live streams

At least `MIN_LIVE` live streams are observed when there are that many. An observed stream stands
for `weight` = live / observed streams. Answers that are not streamed cost three messages each and
get a fifth of the budget. Upgrades are never observed.

The coin knows the load only as it was: while streams pile up it fell for many when they were few.
So no stream is picked while those observed make `SURPLUS` times the budget, and of the answers
that are not streamed at most `PLAIN_BURST_S` seconds of their share within one window.
"""

from __future__ import annotations

from typing import Protocol

MIN_LIVE = 4
PLAIN_MESSAGES = 3
PLAIN_SHARE = 0.2
FIRST_GUESS_PER_S = 30.0  # messages per stream and second before any was measured
MEMORY = 0.3
SURPLUS = 1.2  # the coin's own scatter, so that the bound does not eat into the budget
PLAIN_BURST_S = 4.0  # two windows


class Rng(Protocol):
    """A source of uniform numbers in [0, 1)."""

    def random(self) -> float:
        """The next number."""
        ...


class ObserverSampler:
    """Coin and rate estimate of one pool."""

    def __init__(self, messages_per_s: float) -> None:
        self._budget = messages_per_s
        self._per_stream = FIRST_GUESS_PER_S
        self._messages = 0
        self._plain_rate = 0.0
        self._plain_picked = 0  # in this window

    def reconfigure(self, messages_per_s: float) -> None:
        """A new budget."""
        self._budget = messages_per_s

    def note_messages(self, count: int) -> None:
        """Observed streams sent `count` messages."""
        self._messages += count

    def close_window(self, duration_s: float, observed: int, plain_per_s: float) -> None:
        """Once per window: `observed` live streams now, `plain_per_s` unstreamed answers."""
        if observed and self._messages and duration_s > 0.0:
            measured = self._messages / duration_s / observed
            self._per_stream += MEMORY * (measured - self._per_stream)
        self._messages = self._plain_picked = 0
        self._plain_rate += MEMORY * (plain_per_s - self._plain_rate)

    def probability(self, streamed: bool, live: int) -> float:
        """p for the next admission, with `live` streams in flight besides it."""
        if self._budget <= 0.0:
            return 0.0
        if not streamed:
            return min(
                1.0, PLAIN_SHARE * self._budget / max(1e-9, PLAIN_MESSAGES * self._plain_rate)
            )
        return min(1.0, self._budget / max(1e-9, self._per_stream * (live + 1)))

    def flip(self, streamed: bool, live: int, observed: int, rng: Rng) -> bool:
        """Whether the next admission is observed."""
        if self._budget <= 0.0:
            return False
        if streamed and observed < MIN_LIVE:
            return True
        if not self._affordable(streamed, observed):
            return False
        p = self.probability(streamed, live)
        picked = p >= 1.0 or rng.random() < p
        self._plain_picked += picked and not streamed
        return picked

    def _affordable(self, streamed: bool, observed: int) -> bool:
        if streamed:
            return observed * self._per_stream < SURPLUS * self._budget
        burst = PLAIN_BURST_S * PLAIN_SHARE * self._budget / PLAIN_MESSAGES
        return self._plain_picked < max(1.0, burst)
