"""How long answers are: what a tenant is charged before anybody knows, and what they took.

    expected   the mean of its tenant's answers (of the pool's until there were some), at most what
               the request asks for
    took       what `usage` says; else the tokens that were counted · u; else seconds · v
    u          usage / counted tokens, of streams that tell both: an event may carry several
    v          tokens / seconds, of all answers whose tokens are known

Only a sample of the answers is observed, and most streams carry no `usage`: SDKs ask for none by
default. What is known of a few must not decide what a tenant is charged for the rest, so every
other answer counts by the time that it held its slot: answers that share a batch come at one pace.
Where no answer is ever observed (a wiring without an observer; v is then the mean per mean time)
turns are fair by time; where those that are tell no tokens, by what was expected.

Every answer that succeeded counts once in the means, so they need no weights for the sampling.

Bounds: the means of the MAX_TENANTS tenants who were answered last; no answer counts for more than
MAX_OUTPUT_TOKENS, whatever it claims or however long it takes. Owner: the pool; pure.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

from policy_server.core.leases import Lease
from policy_server.core.request import Request

OUTPUT_COST = 2.0  # an output token costs an engine about twice a prompt token (VTC)
FIRST_OUTPUT = 128.0  # tokens expected before any answer was seen
MAX_OUTPUT_TOKENS = 1 << 20  # no model writes more in one answer
MAX_PROMPT_TOKENS = 1 << 24  # or reads more
MAX_TENANTS = 10_000
MEMORY = 0.05
FIRST_WEIGHT = 2  # answers' worth that the pool's mean counts for in that of a new tenant
PACE_MEMORY = 1.0 - 1.0 / 64.0  # per answer


class Ratio:
    """Σa / Σb of the last 64 or so."""

    def __init__(self) -> None:
        self._a = self._b = 0.0

    def saw(self, a: float, b: float) -> None:
        """One more of each; nothing when `b` is none."""
        if b > 0.0:
            self._a = self._a * PACE_MEMORY + a
            self._b = self._b * PACE_MEMORY + b

    @property
    def value(self) -> float | None:
        """None before there was any."""
        return self._a / self._b if self._b > 0.0 else None


class _Mean(NamedTuple):
    tokens: float
    answers: int


class AnswerLengths:
    """Output tokens of one pool's answers."""

    def __init__(self) -> None:
        self.mean = FIRST_OUTPUT
        """Of all tenants."""
        self._tenants: OrderedDict[str, _Mean] = OrderedDict()  # by last answer
        self._per_event = Ratio()
        self._pace = Ratio()
        self._seconds = Ratio()
        self._observed = False  # any of them

    def __len__(self) -> int:
        """Tenants whose mean is kept."""
        return len(self._tenants)

    def expected(self, request: Request) -> float:
        """Output tokens it will probably take."""
        known = self._tenants.get(request.tenant)
        return min(self.mean if known is None else known.tokens, request.max_tokens or math.inf)

    def usual(self, request: Request) -> float:
        """The same by what is usual here, whoever asks."""
        return min(self.mean, request.max_tokens or math.inf)

    def told(self, lease: Lease) -> float | None:
        """Output tokens that this answer has told; None when it was not observed."""
        claimed = lease.completion_tokens
        if claimed is not None and claimed > 0:
            return float(claimed)
        if lease.tokens:
            per_event = self._per_event.value
            counted = lease.tokens * lease.choices * (1.0 if per_event is None else per_event)
            return min(counted, MAX_OUTPUT_TOKENS)
        return None if claimed is None else 0.0

    def took(self, lease: Lease, seconds: float) -> float:
        """Output tokens of an answer that held its slot for `seconds`."""
        told = self.told(lease)
        if told is not None:
            return told
        pace = self._pace.value
        if pace is None and self._observed:
            return lease.expected_tokens
        if pace is None:
            mean_s = self._seconds.value
            pace = self.mean / mean_s if mean_s else 0.0
        return min(seconds * pace, MAX_OUTPUT_TOKENS)

    def saw(self, lease: Lease, seconds: float) -> None:
        """A whole answer that succeeded."""
        told = self.told(lease)
        self._observed |= lease.observed
        if told is not None:
            if lease.tokens and lease.completion_tokens:
                self._per_event.saw(told / lease.choices, min(lease.tokens, MAX_OUTPUT_TOKENS))
            self._pace.saw(told, seconds)
        self._seconds.saw(seconds, 1.0)
        took = self.took(lease, seconds)
        if told is not None or self._pace.value is not None:
            self.mean += MEMORY * (took - self.mean)
        self._learn(lease.request.tenant, took)

    def _learn(self, tenant: str, took: float) -> None:
        mean, answers = self._tenants.get(tenant) or _Mean(self.mean, 0)
        step = max(MEMORY, 1.0 / (answers + FIRST_WEIGHT))
        self._tenants[tenant] = _Mean(mean + step * (took - mean), answers + 1)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
