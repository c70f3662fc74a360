"""What an unloaded engine would do: TTFT by prompt size, and seconds per output token.

    B[b]: x, x' < B → .8 B + .2 max(x, x')        T0 likewise
    else: both leak upwards by 2e-5 per second of time with samples, at most 1.1x in total
    above the lowest value ever reached (until `escape`)

A baseline that rises freely drifts to whatever the overload is; one that never rises can't follow
an engine that became slower for good. Hence the bounded leak here, and `escape` for the rest.
Two samples below move a baseline, by a fifth of the way to the higher of them: one outlier (a
prompt that was cached) moves nothing.

An engine whose pace hardly changes while half of its load goes has no load to be slow by: a T0
far below that (of answers that were made in another way, of a model that was exchanged under its
name) is refuted, and what the two loads say takes its place at once:

    T, T' > 4.5 T0 at loads N, N' ≤ N/2, T' ≥ .85 T, twice:    T0 = T' − N' · (T − T')/(N − N')

A size first met behind a queue would take the queue for its unloaded time. Sizes of one family
(model, path, kind) therefore vouch for each other:

    B*[b] = min(B[b], 1.5 B[b + i], 2.5^i B[b − i])     i = 1, 2, …

a prompt twice as long costs at most twice as much prefill and some attention, a longer one hardly
less. Of answers that come whole the value is per token and falls with the length: mirrored.

Owner: the pool. Keys are (model, path, kind of answer, size bucket); the table is bounded, and who
was not heard of for the longest makes room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

LEAK_PER_S = 2e-5
MAX_LEAK = 1.1  # 1.2 let the limit rise by a quarter in a day of backlog
DOWN_WEIGHT = 0.2
MAX_KEYS = 4096  # client-chosen model names and paths must not grow memory
OLDEST = 16  # of the longest unheard, the least sampled goes: a flood of names only evicts its own

PER_OCTAVE = 2.5  # unloaded time against that of half the size: prefill, and attention's square
REFUTED_FROM = 4.5  # times T0: what the guard allows (vegas.py)
HALF_LOAD = 0.5
SAME_PACE = 0.85  # decoding that is 4.5 times as slow by its batch is at .61 with half of it
REFUTALS = 2  # windows in a row

SMALLER = 1.5  # … against that of a larger size, which may have been in the prompt cache

Key = tuple[str, str, str, int]
K = TypeVar("K")
V = TypeVar("V")


def size_bucket(tokens: int) -> int:
    """floor(log2 tokens); 0 for unknown or 1."""
    return max(0, tokens.bit_length() - 1)


@dataclass(slots=True)
class Baseline:
    """One slow minimum. `value` and `proof` in seconds, `at` monotonic seconds."""

    value: float
    proof: float
    at: float
    samples: int = 1  # since the last escape
    low: float | None = None  # a sample below `value` that waits for a second one

    def update(self, x: float, now: float) -> None:
        """Take a sample: fall with every second one below, or leak."""
        elapsed = max(0.0, now - self.at)
        self.at = now
        self.samples += 1
        if x <= self.value:
            if x < self.value:
                self._fall(x)
            return
        # Only time between neighbouring samples leaks, so that a lull or a night moves nothing.
        leaked = self.value * (1.0 + LEAK_PER_S * min(elapsed, 10.0))
        self.value = min(leaked, max(self.value, self.proof * MAX_LEAK))

    def _fall(self, x: float) -> None:
        if self.low is None:
            self.low = x
            return
        self.value += DOWN_WEIGHT * (max(x, self.low) - self.value)
        self.proof = min(self.proof, self.value)
        self.low = None

    def raise_by(self, factor: float) -> None:
        """The engine is slower for good: accept `factor` times the value as the new proof.

        Only on evidence since the last time: an outage that lasts an hour, without a sample, must
        not double a baseline every ten seconds.
        """
        if self.samples:
            self.value *= factor
            self.proof = self.value
            self.low = None
            self.samples = 0


@dataclass(slots=True)
class Pace:
    """T0 of one model, and what may refute it; loads in seats."""

    base: Baseline
    worst: tuple[float, float] | None = None  # (load, T) at the highest load since T is too high
    against: int = 0

    def update(self, x: float, load: tuple[float, float], now: float) -> None:
        """Take the T of one window, in which between `load[0]` and `load[1]` were in flight."""
        self.base.update(x, now)
        least, most = load
        if x <= REFUTED_FROM * self.base.value:
            self.worst, self.against = None, 0
        elif self.worst is None or least > self.worst[0]:
            self.worst, self.against = (least, x), 0
        elif most <= HALF_LOAD * self.worst[0] and x >= SAME_PACE * self.worst[1]:
            self.against += 1
            if self.against >= REFUTALS:
                self._refute(x, most)
        else:
            self.against = 0

    def _refute(self, x: float, load: float) -> None:
        assert self.worst is not None
        worst_load, worst = self.worst
        slope = max(0.0, (worst - x) / (worst_load - load))
        self.base.raise_by(max(1.0, (x - slope * load) / self.base.value))
        self.worst, self.against = None, 0


class Baselines:
    """TTFT baselines by key and T0 by model, all in seconds."""

    def __init__(self) -> None:
        self._ttft: dict[Key, Baseline] = {}
        self._families: dict[tuple[str, str, str], dict[int, Baseline]] = {}
        self._tpot: dict[str, Pace] = {}

    def ttft_residual(
        self, key: Key, x: float, now: float, allowed: float = 1.0, at_first: float = math.inf
    ) -> float:
        """Seconds of `x` above `allowed` times what this size costs unloaded.

        Takes `x` as a sample, too; the very first counts for no more than `at_first`.
        """
        if not _is_duration(x):
            return 0.0
        base = self._ttft.pop(key, None)
        if base is None:
            first = min(x, at_first)
            base = self._add(key, Baseline(first, first, now, samples=0))
        self._ttft[key] = base  # in order of the last sample
        residual = max(0.0, x - allowed * self._vouched(key, base))
        base.update(x, now)
        return residual

    def _add(self, key: Key, base: Baseline) -> Baseline:
        if len(self._ttft) >= MAX_KEYS:
            gone = _least_missed(self._ttft, lambda known: known.samples)
            del self._ttft[gone]
            del self._families[gone[:3]][gone[3]]
            if not self._families[gone[:3]]:
                del self._families[gone[:3]]
        self._ttft[key] = base
        self._families.setdefault(key[:3], {})[key[3]] = base
        return base

    def _vouched(self, key: Key, base: Baseline) -> float:
        """B*, see the module's header."""
        mirrored = -1 if key[2] == "whole" else 1
        size, lowest = key[3], base.value
        for other, known in self._families[key[:3]].items():
            octaves = (size - other) * mirrored
            if octaves:
                factor = PER_OCTAVE**octaves if octaves > 0 else SMALLER
                lowest = min(lowest, factor * known.value)
        return lowest

    def unloaded(self, key: Key) -> float | None:
        """B*: what `key` costs unloaded, as its own samples and other sizes say, seconds."""
        base = self._ttft.get(key)
        return None if base is None else self._vouched(key, base)

    def ttft(self, key: Key) -> float | None:
        """B, what samples of `key` alone say, seconds."""
        base = self._ttft.get(key)
        return base.value if base else None

    def ttft_min(self) -> float | None:
        """The smallest unloaded TTFT of streamed answers of any size, seconds."""
        return min((b.value for key, b in self._ttft.items() if key[2] == "stream"), default=None)

    def tpot_sample(
        self, model: str, x: float, now: float, load: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Take the token-weighted TPOT of one window; `load`: seats in use, least and most."""
        if not _is_duration(x):
            return
        pace = self._tpot.pop(model, None)
        if pace is not None:
            pace.update(x, load, now)
        elif len(self._tpot) >= MAX_KEYS:
            del self._tpot[_least_missed(self._tpot, lambda known: known.base.samples)]
        self._tpot[model] = pace or Pace(Baseline(x, x, now))

    def tpot(self, model: str) -> float | None:
        """T0 of `model`, seconds per token."""
        pace = self._tpot.get(model)
        return pace.base.value if pace else None

    def escape(self) -> None:
        """At the floor and still over: the engine itself is slower. B·2, T0·1.5."""
        for base in self._ttft.values():
            base.raise_by(2.0)
        for pace in self._tpot.values():
            pace.base.raise_by(1.5)

    def state(self) -> dict[str, float]:
        """All baselines as flat numbers, for the journal."""
        saved = {f"ttft|{'|'.join(map(str, k))}": b.value for k, b in self._ttft.items()}
        saved.update({f"tpot|{model}": pace.base.value for model, pace in self._tpot.items()})
        return saved

    def restore(self, state: Iterable[tuple[str, float]], now: float) -> None:
        """Take back what `state` gave; entries of another shape are ignored."""
        for name, value in state:
            kind, _, rest = name.partition("|")
            if not _is_duration(value):
                continue
            if kind == "tpot":
                self._tpot[rest] = Pace(Baseline(value, value, now))
            elif kind == "ttft":
                parts = rest.rsplit("|", 3)
                if len(parts) == 4 and parts[3].isdigit():
                    key = (parts[0], parts[1], parts[2], int(parts[3]))
                    self._add(key, Baseline(value, value, now))


def _least_missed(table: Mapping[K, V], samples: Callable[[V], int]) -> K:
    """Of those that were sampled longest ago, the one with the fewest samples."""
    return min(islice(table, OLDEST), key=lambda key: samples(table[key]))


def _is_duration(x: float) -> bool:
    """A zero (tokens that came in one burst) would be a baseline that nothing can ever meet."""
    return 0.0 < x < math.inf
