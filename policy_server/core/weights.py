"""What a request costs: its seats, the tokens that its tenant is charged, and what it really took.

Puts together how long answers are (`lengths`) and how large prompts are (`seats`). Owner: the pool.
"""

from __future__ import annotations

import math
from dataclasses import replace

from policy_server.core.leases import Lease
from policy_server.core.lengths import OUTPUT_COST, AnswerLengths
from policy_server.core.outcome import LeaseEnd
from policy_server.core.request import Request
from policy_server.core.room.tenants import FADE_S
from policy_server.core.samples import Completion
from policy_server.core.seats import Seats, fitted


class Weights:
    """The costs of one pool."""

    def __init__(self) -> None:
        self.lengths = AnswerLengths()
        self._seats = Seats()

    def weigh(self, request: Request, limit: float) -> Request:
        """The request with its seats; one that was weighed before weighs no less."""
        if not self._seats.known:
            return fitted(request, limit)
        seats = self._seats.of(request, self.lengths.usual(request), limit)
        return replace(request, seats=seats) if seats > request.seats else fitted(request, limit)

    def charge(self, lease: Lease) -> float:
        """Tokens to charge for it now; the lease keeps what they stand for."""
        lease.expected_tokens = output = self.lengths.expected(lease.request)
        lease.expected_prompt = prompt = self._seats.prompts.tokens(lease.request)
        return prompt + OUTPUT_COST * output

    def settle(self, lease: Lease, how: LeaseEnd, completion: Completion, now: float) -> float:
        """Its end: the correction of the charge, tokens. 0 for what is not known: the charge of
        before a restart, the end of an answer that nobody saw end."""
        if lease.restored:
            return 0.0
        held_s = max(0.0, now - lease.granted)
        if how is LeaseEnd.NEVER_SENT:
            charged = lease.expected_prompt + OUTPUT_COST * lease.expected_tokens
            return -charged * math.exp(-held_s / FADE_S)  # what has not faded of it
        if how is LeaseEnd.EXPIRED and self.lengths.told(lease) is None:
            return 0.0
        if how is LeaseEnd.COMPLETED and 200 <= completion.status < 300:
            self._learn(lease, held_s)
        off = OUTPUT_COST * (self.lengths.took(lease, held_s) - lease.expected_tokens)
        return off + (lease.prompt_tokens - lease.expected_prompt if lease.prompt_tokens > 0 else 0)

    def _learn(self, lease: Lease, held_s: float) -> None:
        told = self.lengths.told(lease)
        if told is not None:
            self._seats.saw(lease.request, lease.prompt_tokens, int(told))
        self.lengths.saw(lease, held_s)
