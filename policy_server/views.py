"""The running core as plain values, for metrics, `/statusz` and people."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from policy_server.core.admission import Admission
from policy_server.core.events import Event, LimitChanged
from policy_server.core.limit.base import Change, Reason
from policy_server.core.pool import Pool
from policy_server.core.request import PRIORITIES, Kind
from policy_server.telemetry.views import ChangeView, NodeView, PoolView, ScrapeView, TenantView

CHANGES_KEPT = 20
TENANTS_SHOWN = 20
ANONYMOUS = "(anonymous)"


class Views:
    """Remembers the last moves of each limit and describes the pools on request."""

    def __init__(
        self,
        admission: Admission,
        scrapes: Callable[[str, float], Sequence[ScrapeView]] = lambda _pool, _now: (),
    ) -> None:
        self._admission = admission
        self._scrapes = scrapes
        self._changes: dict[str, deque[tuple[float, float, Change]]] = {}

    def on_event(self, event: Event, now: float) -> None:
        """Keep the moves of the limits; everything else is read at the moment of asking."""
        if not isinstance(event, LimitChanged) or event.change.reason is Reason.HOLD:
            return
        if event.change.limit != event.previous:  # a bound that holds it in place is no move
            kept = self._changes.setdefault(event.pool, deque(maxlen=CHANGES_KEPT))
            kept.appendleft((now, event.previous, event.change))

    def pools(self, now: float) -> Iterator[PoolView]:
        """One view per pool."""
        return (self._pool(pool, now) for pool in self._admission.pools())

    def nodes(self, now: float) -> list[NodeView]:
        """The Envoys that were heard of, by their logs or by their leases."""
        heard: dict[str, float] = {}
        leases: Counter[str] = Counter()
        for pool in self._admission.pools():
            heard.update(pool.leases.nodes())
            held = (x.request for x in pool.leases if x.request.kind is Kind.HELD)
            leases.update(request.node for request in held)
        return [
            NodeView(node, leases[node], now - heard[node] if node in heard else None)
            for node in sorted(heard.keys() | leases.keys())
        ]

    def _pool(self, pool: Pool, now: float) -> PoolView:
        limit, sample = pool.params.limit, pool.feedback.last_sample
        live = pool.leases.streamed
        return PoolView(
            name=pool.params.name,
            limit=pool.limit.current,
            inflight_seats=pool.leases.seats,
            inflight_requests=len(pool.leases),
            waiting=dict(zip(PRIORITIES, pool.room.counts(), strict=True)),
            jobs_waiting=dict(zip(PRIORITIES, pool.jobs.counts(), strict=True)),
            waiting_by_tenant=_top_tenants(pool),
            held_by_tenant=pool.room.tenants(),
            tenants=_tenants(pool),
            predicted_wait_s=dict(zip(PRIORITIES, pool.predicted_waits(now), strict=True)),
            limit_min=limit.minimum,
            limit_max=limit.maximum if limit.algorithm != "fixed" else None,
            drain_rate=pool.predictor.drain.per_s(pool.limit.current, now),
            engine_queue=sample.engine_queue,
            delay_s=sample.delay_s,
            tpot_s=sample.tpot_s,
            tpot_unloaded_s=sample.tpot_unloaded_s,
            leases=len(pool.leases),
            oldest_lease_age_s=max((now - x.granted for x in pool.leases), default=None),
            observed_streams=len(pool.leases.observed),
            observe_p=pool.feedback.sampler.probability(True, live),
            changes=[
                ChangeView(previous, change.limit, change.reason, now - at)
                for at, previous, change in self._changes.get(pool.params.name, ())
            ],
            last_window=sample if sample.duration_s else None,
            asked_seats=_finite(pool.usable.ceiling.seats(now)),
            asked_rps=_finite(pool.usable.ceiling.rps(now)),
            scrapes=self._scrapes(pool.params.name, now),
            backends_ready=pool.usable.ramp.ready,
            holding=pool.usable.ramp.closed,
            ramp=pool.usable.ramp.share(now),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _top_tenants(pool: Pool) -> dict[str, int]:
    most = pool.room.tenants().most_common(TENANTS_SHOWN)
    return {tenant or ANONYMOUS: count for tenant, count in most}


def _tenants(pool: Pool) -> dict[str, TenantView]:
    """The tenants with most requests here, jobs included."""
    inflight = Counter(lease.request.tenant for lease in pool.leases)
    waiting = [Counter(pool.room.lines(priority)) for priority in PRIORITIES]
    most = (inflight + sum(waiting, Counter())).most_common(TENANTS_SHOWN)
    return {
        tenant or ANONYMOUS: TenantView(
            {p: waiting[p][tenant] for p in PRIORITIES}, inflight[tenant]
        )
        for tenant, _ in most
    }
