"""What this server can't see, said in `/statusz` for as long as it is true.

The limit: the ext_authz wiring has no observer, so without load reports of the engines nothing
tells of the queue in front of streamed answers, nor of their pace. Said at the start, too, when the
server is told that it runs in that wiring.

Ends: a request without an identity can't be found in the access log.
"""

from __future__ import annotations

from collections.abc import Iterable

from policy_server.telemetry.views import PoolView

REPORT_MEMORY_S = 60.0
"""Reports come with answers; while slots are in use, a minute without one is none."""


STRANGERS_MEMORY_S = 300.0
"""A configuration that lacks the identity lacks it in every request."""


class BlindSpots:
    """Remembers which pools have reports. `told`: every pool is asked for through ext_authz."""

    def __init__(self, told: bool) -> None:
        self._told = told
        self._strangers = 0
        self._last_stranger = float("-inf")
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

    def strangers(self, count: int, now: float) -> list[str]:
        """A sentence while requests without an identity come. `count`: of them since the start."""
        if count > self._strangers:
            self._strangers, self._last_stranger = count, now
        if now - self._last_stranger > STRANGERS_MEMORY_S:
            return []
        return [
            f"{count} requests came without x-policy-uid: the log can't tell when they end, their "
            "slots are freed by time, a restart loses their place; let Envoy stamp it (see README)"
        ]

    def _sees(self, pool: PoolView, now: float) -> bool:
        last = self._reported.get(pool.name)
        if last is None:
            return False
        return not pool.leases or now - last <= REPORT_MEMORY_S
