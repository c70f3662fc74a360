"""What the limit can't see: the ext_authz wiring has no observer, so without load reports of the
engines nothing tells of the queue in front of streamed answers, nor of their pace.

Said at the start when the server is told that it runs in that wiring, and in `/statusz` for as
long as it is true.
"""

from __future__ import annotations

from collections.abc import Iterable

from policy_server.telemetry.views import PoolView

REPORT_MEMORY_S = 60.0
"""Reports come with answers; while slots are in use, a minute without one is none."""


class BlindSpots:
    """Remembers which pools have reports. `told`: every pool is asked for through ext_authz."""

    def __init__(self, told: bool) -> None:
        self._told = told
        self._reported: dict[str, float] = {}

    def report_used(self, pool: str, now: float) -> None:
        """An engine of this pool said how it is."""
        self._reported[pool] = now

    def warnings(self, pools: Iterable[PoolView], asked: bool, now: float) -> list[str]:
        """One sentence per blind pool. `asked`: ext_authz Checks have come in at all."""
        return [
            f"pool {pool.name}: ext_authz without load reports: the limit can't see the queue in "
            "front of streamed answers, nor their pace; set load_reports or a fixed limit, or use "
            "the gate wiring"
            for pool in pools
            if pool.limit_max is not None  # a fixed limit needs no eyes
            and (self._told or (asked and pool.leases))
            and not self._sees(pool, now)
        ]

    def _sees(self, pool: PoolView, now: float) -> bool:
        last = self._reported.get(pool.name)
        if last is None:
            return False
        return not pool.leases or now - last <= REPORT_MEMORY_S
