"""Answers that come whole: the queue told from the length by a regression.

    time_i = q + T·n_i          least squares over the last ~64 answers, exponentially weighted

The slope T is the time per token in the present batch, the intercept q what an answer of no tokens
would have taken: prefill and queue. It takes lengths that differ: below `MIN_SPREAD` (standard
deviation over mean) nothing is estimated, and the caller has to make do with the whole time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY = 64.0  # answers
MIN_ANSWERS = 16.0
MIN_SPREAD = 0.15


@dataclass(frozen=True, slots=True)
class Line:
    """`slope_s` seconds per token, `intercept_s` seconds ≥ 0, `mean_s` the mean time."""

    slope_s: float
    intercept_s: float
    mean_s: float


class WholeAnswers:
    """Running sums of (tokens, seconds). Owner: the window."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._n = self._t = self._nn = self._nt = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """One answer of `tokens` (≥ 1) that took `seconds` from its dispatch."""
        if not (math.isfinite(seconds) and seconds > 0.0 and tokens > 0):
            return
        keep = 1.0 - 1.0 / MEMORY
        self._weight = self._weight * keep + 1.0
        self._n = self._n * keep + tokens
        self._t = self._t * keep + seconds
        self._nn = self._nn * keep + tokens * tokens
        self._nt = self._nt * keep + tokens * seconds

    def line(self) -> Line | None:
        """The fit, None while the answers are too few or too equal."""
        if self._weight < MIN_ANSWERS:
            return None
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - mean_n * mean_n
        if variance <= (MIN_SPREAD * mean_n) ** 2:
            return None
        slope = (self._nt / self._weight - mean_n * mean_t) / variance
        slope = min(max(slope, 0.0), mean_t / mean_n)  # neither time runs backwards
        return Line(slope, mean_t - slope * mean_n, mean_t)
