"""How much a request weighs: a long prompt takes more than one seat.

    prompt   tokens ≈ bytes · r[b],  b = ⌊log2 bytes⌋;  r[b] learned from the `usage` of answers,
             content-length / 4 before that; a body of unknown length counts as the median
    tokens   prompt + expected output
    seats    = ⌊tokens / (2.5 · mean tokens)⌋, within 1 .. min(8, L/4)

The limit may have moved since a request was weighed, so it is fitted into a quarter of it again
when it is about to go: a request of 8 seats would wait for ever, and its line with it, where the
limit has shrunk to 6. What it was fitted to it holds to its end.

By size, because what the bytes are differs by size: of 3 MB nearly all is an image, a few hundred
tokens. A length is only claimed, so it can't claim more than a quarter of the limit, and the next
answers of that size put it right.

Bounds: one ratio per power of two. Owner: the pool; pure.
"""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.request import Request

MAX_SEATS = 8
MAX_PART = 4.0  # of the limit: a quarter
HEAVY = 2.5  # times the mean; lengths that spread as usual weigh one seat; 2 cut L at half load
MAX_SIZES = 48  # powers of two of a length
MEMORY = 0.05
MEDIAN_STEP = 0.05
FIRST_PROMPT = 256.0  # tokens, before any were seen
ENOUGH = 20  # answers before anybody weighs more than one seat


def most_seats(limit: float) -> int:
    """The largest weight under this limit, 1..8."""
    return max(1, min(MAX_SEATS, int(limit / MAX_PART)))


def fitted(request: Request, limit: float) -> Request:
    """The request with no more seats than it may have under this limit."""
    most = most_seats(limit)
    return request if request.seats <= most else replace(request, seats=most)


class PromptSizes:
    """Prompt tokens from body bytes."""

    def __init__(self) -> None:
        self._ratio: dict[int, float] = {}
        self._median = FIRST_PROMPT

    def tokens(self, request: Request) -> float:
        """Prompt tokens that this request probably has."""
        if not request.body_bytes:
            return self._median
        ratio = self._ratio.get(_size(request.body_bytes))
        return float(request.prompt_tokens) if ratio is None else request.body_bytes * ratio

    def saw(self, request: Request, tokens: int) -> None:
        """An answer tells that the prompt had so many tokens (> 0)."""
        step = MEDIAN_STEP if tokens > self._median else -MEDIAN_STEP
        self._median = max(1.0, self._median * (1.0 + step))
        if request.body_bytes:
            size, ratio = _size(request.body_bytes), tokens / request.body_bytes
            known = self._ratio.get(size, ratio)
            self._ratio[size] = known + MEMORY * (ratio - known)


def _size(length: int) -> int:
    return min(length.bit_length(), MAX_SIZES)


class Seats:
    """Weights of one pool."""

    def __init__(self) -> None:
        self.prompts = PromptSizes()
        self._mean: float | None = None
        self._seen = 0

    @property
    def known(self) -> bool:
        """Whether enough answers were seen for anybody to weigh more than one seat."""
        return self._seen >= ENOUGH

    def of(self, request: Request, output: float, limit: float) -> int:
        """Seats of a request with so many `output` tokens expected."""
        if self._mean is None or self._seen < ENOUGH:
            return 1
        tokens = self.prompts.tokens(request) + output
        return max(1, min(most_seats(limit), int(tokens / (HEAVY * self._mean))))

    def saw(self, request: Request, prompt: int, output: int) -> None:
        """An answer tells its tokens; of the `prompt` perhaps nothing (0)."""
        if prompt > 0:
            self.prompts.saw(request, prompt)
        tokens = float(prompt) if prompt > 0 else self.prompts.tokens(request)
        tokens += max(0, output)
        mean = tokens if self._mean is None else self._mean
        self._mean = mean + MEMORY * (tokens - mean)
        self._seen += 1
