"""How long answers are: what a tenant is charged before anybody knows."""

from __future__ import annotations

import math

from policy_server.core.request import Request

OUTPUT_COST = 2.0  # an output token costs an engine about twice a prompt token (VTC)
FIRST_OUTPUT = 128.0  # tokens expected before any answer was seen
MEMORY = 0.05


class AnswerLengths:
    """Mean output tokens of one pool. Owner: the pool."""

    def __init__(self) -> None:
        self.mean = FIRST_OUTPUT

    def expected(self, request: Request) -> float:
        """Output tokens it will probably take: what answers take, at most what it asked for."""
        return min(self.mean, request.max_tokens or math.inf)

    def saw(self, tokens: int, expected: float) -> float:
        """An answer had `tokens` where `expected` were charged; gives the correction."""
        self.mean += MEMORY * (tokens - self.mean)
        return OUTPUT_COST * (tokens - expected)
