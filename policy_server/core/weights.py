"""What a request costs: its seats, the tokens that its tenant is charged, and what it really took.

Puts together how long answers are (`lengths`) and how large prompts are (`seats`). Owner: the pool.
"""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.leases import Lease
from policy_server.core.lengths import OUTPUT_COST, AnswerLengths
from policy_server.core.request import Request
from policy_server.core.seats import Seats


class Weights:
    """The costs of one pool."""

    def __init__(self) -> None:
        self.lengths = AnswerLengths()
        self._seats = Seats()

    def weigh(self, request: Request, limit: float) -> Request:
        """The request with its seats."""
        if not self._seats.known:
            return request
        seats = self._seats.of(request, self.lengths.expected(request), limit)
        return request if seats <= request.seats else replace(request, seats=seats)

    def charge(self, lease: Lease) -> float:
        """Tokens to charge for it now; the lease keeps what they stand for."""
        lease.expected_tokens = output = self.lengths.expected(lease.request)
        lease.expected_prompt = prompt = self._seats.prompts.tokens(lease.request)
        return prompt + OUTPUT_COST * output

    def settle(self, lease: Lease) -> float:
        """Its end: the correction of the charge, tokens; 0 when the answer told no usage."""
        if lease.completion_tokens is None:
            return 0.0
        self._seats.saw(lease.request, lease.prompt_tokens, lease.completion_tokens)
        off = self.lengths.saw(lease.completion_tokens, lease.expected_tokens)
        return off + (lease.prompt_tokens - lease.expected_prompt if lease.prompt_tokens > 0 else 0)
