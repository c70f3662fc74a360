"""Two things measured in turns, so that a slow moment of the machine hits both.

A round is A B B A: what drifts meanwhile weighs on both the same. The ratio is the median over the
rounds of what each of them gives; the first round warms up and does not count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import mean, median, quantiles


@dataclass(frozen=True, slots=True)
class Rate:
    """Answers per second, and the CPU of the server's process for each, in microseconds."""

    per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Round:
    """The means of two turns each."""

    ours: Rate
    other: Rate


Turn = Callable[[], Awaitable[Rate]]


async def in_turns(rounds: int, ours: Turn, other: Turn) -> list[Round]:
    """`rounds` of them after one that warms up, four turns each."""
    found = []
    for _ in range(rounds + 1):
        first, second = await ours(), await other()
        third, fourth = await other(), await ours()
        found.append(Round(_mean(first, fourth), _mean(second, third)))
    return found[1:]


def _mean(one: Rate, two: Rate) -> Rate:
    return Rate(mean((one.per_s, two.per_s)), mean((one.cpu_us, two.cpu_us)))


def middle(rates: list[Rate]) -> Rate:
    """Medians."""
    return Rate(median(r.per_s for r in rates), median(r.cpu_us for r in rates))


def speed(rounds: list[Round]) -> float:
    """Ours as a share of the other's rate."""
    return median(r.ours.per_s / r.other.per_s for r in rounds)


def cost(rounds: list[Round]) -> float:
    """Our CPU time for each as a multiple of the other's."""
    return median(r.ours.cpu_us / r.other.cpu_us for r in rounds)


def scatter(rounds: list[Round]) -> str:
    """How far apart the rounds lie, for people."""
    ratios = [r.ours.per_s / r.other.per_s for r in rounds]
    if len(ratios) < 2:
        return "one round"
    low, _, high = quantiles(ratios, n=4)
    return f"{len(ratios)} rounds, their middle half {low:.3f}..{high:.3f}"
