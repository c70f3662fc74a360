"""Randomness by name: one seed, independent streams, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

T = TypeVar("T")


def stream(seed: int, name: str) -> Random:
    """A generator for one purpose; changing how one is used leaves the others alone."""
    return Random(f"{seed}:{name}")


def pick(key: str, weighted: Sequence[tuple[T, float]]) -> T:
    """One of `weighted` (item, weight > 0), decided by a hash of `key`."""
    digest = int.from_bytes(blake2b(key.encode(), digest_size=8).digest())
    point = digest / 2**64 * sum(weight for _, weight in weighted)
    for item, weight in weighted:
        point -= weight
        if point < 0:
            return item
    return weighted[-1][0]
