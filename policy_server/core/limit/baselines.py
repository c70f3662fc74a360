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

Model names are chosen by clients, and a name that is new with each request would never have
waited: its first sample is all it knows. So a name counts by itself only after NAMED samples (for
T0 windows). Until then what all models of the same path and kind say is held against it, too.

What is saved has its proof with it, or each restart would leak anew; of names only those that
count by themselves.

Owner: the pool. Keys are (model, path, kind of answer, size bucket); the table is bounded, and who
was not heard of for the longest makes room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from policy_server.core.limit.vegas import TPOT_GUARD

LEAK_PER_S = 2e-5
MAX_LEAK = 1.1  # 1.2 let the limit rise by a quarter in a day of backlog
DOWN_WEIGHT = 0.2
MAX_KEYS = 4096  # client-chosen model names and paths must not grow memory
OLDEST = 16  # of the longest unheard, the least sampled goes: a flood of names only evicts its own

PER_OCTAVE = 2.5  # unloaded time against that of half the size: prefill, and attention's square
REFUTED_FROM = 1.0 + TPOT_GUARD  # times T0
HALF_LOAD = 0.5
SAME_PACE = 0.85  # decoding that is 4.5 times as slow by its batch is at .61 with half of it
REFUTALS = 2  # windows in a row
WORSE = 1.1  # the engine itself became slower: what was seen before says nothing about it
NAMED = 20  # samples of a name; a slower model is taken for a queue for so long
NAMED_WINDOWS = 3
PROOF = "proof."
MAX_COMMON = 512  # paths and kinds

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
    windows: int = 1

    def update(self, x: float, load: tuple[float, float], now: float) -> None:
        """Take the T of one window, in which between `load[0]` and `load[1]` were in flight."""
        self.base.update(x, now)
        self.windows += 1
        least, most = load
        if x <= REFUTED_FROM * self.base.value:
            self.worst, self.against = None, 0
        elif self.worst is None or least > self.worst[0] or x > WORSE * self.worst[1]:
            self.worst, self.against = (least, x), 0
        elif 0.0 < most <= HALF_LOAD * self.worst[0] and x >= SAME_PACE * self.worst[1]:
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


@dataclass(slots=True)
class Family:
    """Baselines by size, of one path and kind, and of one model or of all."""

    sizes: dict[int, Baseline] = field(default_factory=dict)
    samples: int = 0

    def vouched(self, key: Key) -> float:
        """B*, see the module's header; infinite when nothing is known."""
        mirrored = -1 if key[2] == "whole" else 1
        lowest = math.inf
        for other, known in self.sizes.items():
            octaves = (key[3] - other) * mirrored
            factor = PER_OCTAVE**octaves if octaves > 0 else SMALLER if octaves else 1.0
            lowest = min(lowest, factor * known.value)
        return lowest


class Baselines:
    """TTFT baselines by key and T0 by model, all in seconds."""

    def __init__(self) -> None:
        self._ttft: dict[Key, Baseline] = {}
        self._families: dict[tuple[str, str, str], Family] = {}
        self._common: dict[tuple[str, str], Family] = {}
        self._tpot: dict[str, Pace] = {}
        self._pace: Pace | None = None  # of all models together

    def ttft_residual(
        self, key: Key, x: float, now: float, allowed: float = 1.0, at_first: float = math.inf
    ) -> float:
        """Seconds of `x` above `allowed` times what this size costs unloaded.

        Takes `x` as a sample, too; the very first counts for no more than `at_first`.
        """
        if not _is_duration(x):
            return 0.0
        first = min(x, at_first)
        base = self._ttft.pop(key, None)
        if base is None:
            base = self._add(key, Baseline(first, first, now, samples=0))
        self._ttft[key] = base  # in order of the last sample
        family, common = self._families[key[:3]], self._common_of(key)
        shared = common.sizes.get(key[3])
        if shared is None:
            shared = common.sizes[key[3]] = Baseline(first, first, now, samples=0)
        residual = max(0.0, x - allowed * self._vouched(key))
        for one, of in ((base, family), (shared, common)):
            one.update(x, now)
            of.samples += 1
        return residual

    def _add(self, key: Key, base: Baseline) -> Baseline:
        if len(self._ttft) >= MAX_KEYS:
            gone = _least_missed(self._ttft, lambda known: known.samples)
            del self._ttft[gone]
            del self._families[gone[:3]].sizes[gone[3]]
            if not self._families[gone[:3]].sizes:
                del self._families[gone[:3]]
        self._ttft[key] = base
        self._families.setdefault(key[:3], Family()).sizes[key[3]] = base
        return base

    def _common_of(self, key: Key) -> Family:
        """What all models say of this path and kind, the latest asked for last."""
        common = self._common.pop(key[1:3], None)
        if common is None:
            common = Family()
            if len(self._common) >= MAX_COMMON:
                del self._common[_least_missed(self._common, lambda known: known.samples)]
        self._common[key[1:3]] = common
        return common

    def _vouched(self, key: Key) -> float:
        """B* of a known key, and of all models while its name is new."""
        family, common = self._families[key[:3]], self._common.get(key[1:3])
        lowest = family.vouched(key)
        if family.samples >= NAMED or common is None:
            return lowest
        return min(lowest, common.vouched(key))

    def unloaded(self, key: Key) -> float | None:
        """B*: what `key` costs unloaded, as its own samples and other sizes say, seconds."""
        return self._vouched(key) if key in self._ttft else None

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

    def tpot_of_all(self, x: float, now: float, load: tuple[float, float] = (0.0, 0.0)) -> None:
        """Take the token-weighted TPOT of one window over all models."""
        if not _is_duration(x):
            return
        if self._pace is None:
            self._pace = Pace(Baseline(x, x, now))
        else:
            self._pace.update(x, load, now)

    def rescaled(self) -> None:
        """Other replicas than before: loads seen until now are not comparable."""
        for pace in (*self._tpot.values(), self._pace):
            if pace is not None:
                pace.worst, pace.against = None, 0

    def tpot(self, model: str) -> float | None:
        """T0 of `model`, seconds per token."""
        pace = self._tpot.get(model)
        if pace is None:
            return None
        if pace.windows >= NAMED_WINDOWS or self._pace is None:
            return pace.base.value
        return min(pace.base.value, self._pace.base.value)

    def escape(self) -> None:
        """At the floor and still over: the engine itself is slower. B·2, T0·1.5."""
        common = (base for family in self._common.values() for base in family.sizes.values())
        for base in (*self._ttft.values(), *common):
            base.raise_by(2.0)
        for pace in (*self._tpot.values(), *((self._pace,) if self._pace else ())):
            pace.base.raise_by(1.5)

    def state(self) -> dict[str, float]:
        """All baselines as flat numbers, for the journal."""
        saved: dict[str, float] = {}
        for name, base in self._named():
            saved[name] = base.value
            if base.proof < base.value:
                saved[PROOF + name] = base.proof
        return saved

    def _named(self) -> Iterator[tuple[str, Baseline]]:
        """What is worth saving, by name."""
        for key, base in self._ttft.items():
            if self._families[key[:3]].samples >= NAMED:
                yield _name("ttft", *key), base
        for (path, kind), family in self._common.items():
            for size, base in family.sizes.items():
                yield _name("common.ttft", path, kind, size), base
        for model, pace in self._tpot.items():
            if pace.windows >= NAMED_WINDOWS:
                yield _name("tpot", model), pace.base
        if self._pace is not None:
            yield "common.tpot", self._pace.base

    def restore(self, state: Iterable[tuple[str, float]], now: float) -> None:
        """Take back what `state` gave, or earlier versions; what has another shape is ignored."""
        saved = dict(state)
        for name, value in saved.items():
            proof = saved.get(PROOF + name, value)
            if _is_duration(value):
                base = Baseline(value, proof if 0.0 < proof <= value else value, now)
                self._restore(_parts(name), base)

    def _restore(self, parts: list[str], base: Baseline) -> None:
        match parts:
            case ["ttft", model, path, kind, size] if size.isdigit():
                key = (model, path, kind, int(size))
                self._add(key, base)
                self._families[key[:3]].samples = NAMED
                self._share(key, base)
            case ["common.ttft", path, kind, size] if size.isdigit():
                self._share(("", path, kind, int(size)), base)
            case ["tpot", model]:
                self._tpot[model] = Pace(base, windows=NAMED_WINDOWS)
                self._share_pace(base)
            case ["common.tpot"]:
                self._share_pace(base)

    def _share(self, key: Key, base: Baseline) -> None:
        """Earlier versions saved names alone: their least is what all say."""
        sizes = self._common_of(key).sizes
        if key[3] not in sizes or base.value < sizes[key[3]].value:
            sizes[key[3]] = replace(base)

    def _share_pace(self, base: Baseline) -> None:
        if self._pace is None or base.value < self._pace.base.value:
            self._pace = Pace(replace(base))


def _name(kind: str, *parts: str | int) -> str:
    """Parts joined by "|"; one within a part is written "\\p"."""
    escaped = (str(part).replace("\\", "\\\\").replace("|", "\\p") for part in parts)
    return "|".join((kind, *escaped))


def _parts(name: str) -> list[str]:
    """What `_name` joined."""
    return [
        "\\".join(piece.replace("\\p", "|") for piece in part.split("\\\\"))
        for part in name.split("|")
    ]


def _least_missed(table: Mapping[K, V], samples: Callable[[V], int]) -> K:
    """Of those that were sampled longest ago, the one with the fewest samples."""
    return min(islice(table, OLDEST), key=lambda key: samples(table[key]))


def _is_duration(x: float) -> bool:
    """A zero (tokens that came in one burst) would be a baseline that nothing can ever meet."""
    return 0.0 < x < math.inf
