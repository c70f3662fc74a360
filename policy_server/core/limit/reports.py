"""What the engines of a pool said of themselves last, by source, until it is stale.

Owner: the window; pure.
"""

from __future__ import annotations

from policy_server.core.limit.base import WINDOW_S
from policy_server.core.samples import LoadReport

KV_FULL = 0.9
REPORT_FRESH_S = 2 * WINDOW_S
MAX_SOURCES = 256


class Reports:
    """At most MAX_SOURCES of them."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, LoadReport, bool]] = {}

    def add(self, source: str, report: LoadReport, now: float) -> bool:
        """Keep it; whether it tells a queue of now."""
        last = self._reports.get(source)
        if last is None and len(self._reports) >= MAX_SOURCES:
            self._reports = {s: r for s, r in self._reports.items() if now - r[0] < REPORT_FRESH_S}
            if len(self._reports) >= MAX_SOURCES:
                return False
        at = now - report.age_s
        if last is not None and at < last[0]:
            return False
        preempted = (
            last is not None
            and report.preemptions_total is not None
            and last[1].preemptions_total is not None
            and report.preemptions_total > last[1].preemptions_total
        )
        self._reports[source] = (at, report, preempted)
        return report.waiting is not None and report.age_s < REPORT_FRESH_S

    def read(self, now: float) -> tuple[float | None, bool]:
        """Requests queued in all engines, None = nobody says; whether one says it is full."""
        fresh = [(r, p) for at, r, p in self._reports.values() if now - at < REPORT_FRESH_S]
        fresh = [(r, p) for r, p in fresh if r.scraped] or fresh
        waiting = [r.waiting for r, _ in fresh if r.waiting is not None]
        full = any(p or (r.kv_used is not None and r.kv_used > KV_FULL) for r, p in fresh)
        return (sum(waiting) if waiting else None), full
