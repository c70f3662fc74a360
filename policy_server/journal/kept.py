"""What the jobs that have ended take, by tenant, and what has to go when it is too much. Pure.

The bound is shared as water fills a vessel: whoever keeps less than the level keeps all, the
others are cut down to it. So one who stores much forgets its own answers, not its neighbours'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class KeptBytes:
    """Bytes by tenant. Each job is added once and removed once."""

    def __init__(self, by_tenant: Mapping[str, int] | None = None) -> None:
        self._by_tenant = dict(by_tenant or {})
        self.total = sum(self._by_tenant.values())

    def copy(self) -> KeptBytes:
        """The same numbers."""
        return KeptBytes(self._by_tenant)

    def add(self, tenant: str, size: int) -> None:
        """So much more (or, negative, less) is kept of this tenant."""
        before = self._by_tenant.get(tenant, 0)
        left = max(0, before + size)
        self.total += left - before
        if left:
            self._by_tenant[tenant] = left
        else:
            self._by_tenant.pop(tenant, None)

    def surplus(self, bound: int) -> dict[str, int]:
        """What of whom has to go so that `bound` bytes hold the rest."""
        if self.total <= bound:
            return {}
        level = self._level(bound)
        return {
            tenant: math.ceil(size - level)
            for tenant, size in self._by_tenant.items()
            if size > level
        }

    def _level(self, bound: int) -> float:
        left = float(bound)
        sizes = sorted(self._by_tenant.values())
        for index, size in enumerate(sizes):
            part = left / (len(sizes) - index)
            if size > part:
                return part
            left -= size
        return math.inf
