"""Prometheus metrics, fed by the core's events; gauges are read only when someone scrapes.

Cost is the point of this module: `on_event` runs for every request on the one event loop, and
looking a label child up costs 2 µs. So each pool's children are made once, held in lists indexed
by class, and an event is an increment or two: about 1 µs.

All series of a known pool exist from the start, at 0, so that `rate()` sees the first increment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policy_server.core.events import (
    Admitted,
    Cancelled,
    Event,
    Lapsed,
    LeaseEnded,
    LimitChanged,
    Shed,
)
from policy_server.core.limit.base import Reason
from policy_server.core.outcome import (
    LeaseEnd,
    Outcome,
    ReportOutcome,
    ShedReason,
    TicketOutcome,
)
from policy_server.core.request import PRIORITIES, Kind, Priority
from policy_server.telemetry import names
from policy_server.telemetry.names import MetricId
from policy_server.telemetry.quick import QuickHistogram
from policy_server.telemetry.tenants import TenantSeries
from policy_server.telemetry.views import PoolView

Views = Callable[[], Iterable[PoolView]]

# The default budgets (5, 15, 45 s) and the default wait for a backend (300 s) are bounds, so
# "how many waited longer than their class may" is a bucket, not an interpolation.
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 45, 60, 300)
# Below 0: it went sooner than predicted.
WAIT_ERROR_BUCKETS = (-30, -10, -5, -2, -1, -0.5, -0.1, 0.1, 0.5, 1, 2, 5, 10, 30)
# 1 is the least, 55 the most a client is ever told; Fibonacci in between.
RETRY_AFTER_BUCKETS = (1, 2, 3, 5, 8, 13, 21, 34, 55)
# From a cached short prompt to a request that an engine left in its own queue.
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# 500 tokens/s (small model, idle) to 1 token/s (decode saturated); dense where SLOs lie.
TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
# A decision is some 100 µs; 50 ms is where the overload guard calls the loop late.
DECISION_BUCKETS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3)
LAG_BUCKETS = (1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The registry and everything in it. `views` is called once per scrape."""

    def __init__(self, version: str, pools: Iterable[str], views: Views) -> None:
        # `*_created` gauges would double the series and say what a process start time says.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._families = _Families(self.registry)
        self._decision = QuickHistogram(names.DECISION, DECISION_BUCKETS, self.registry).labels()
        self._loop_lag = _histogram(names.LOOP_LAG, LAG_BUCKETS, self.registry)
        tickets = _counter(names.TICKETS, self.registry)
        self._tickets = {outcome: tickets.labels(outcome.value) for outcome in TicketOutcome}
        build = Gauge(*names.BUILD_INFO, registry=self.registry)
        build.labels(version).set(1)
        self.tenants = TenantSeries(self.registry)
        self.registry.register(_PoolGauges(views, self.tenants))
        ProcessCollector(registry=self.registry)
        self._pools = {name: _PoolSeries(name, self._families) for name in pools}

    def on_event(self, event: Event, now: float) -> None:
        """Count one event of the core; `now` is not needed, the events carry their durations."""
        if isinstance(event, LimitChanged):
            if event.change.reason is not Reason.HOLD:
                self._pool(event.pool).limit_changes[event.change.reason].inc()
            return
        request = event.request
        series = self._pools.get(request.pool) or self._pool(request.pool)
        if isinstance(event, Admitted):
            if not event.resent and request.kind is Kind.HELD:
                series.admitted(event)
                tenant = self.tenants.of(request)
                (tenant.queued if event.queued else tenant.at_once).inc()
        elif isinstance(event, LeaseEnded):
            series.lease_ended(event)
        elif isinstance(event, Shed):
            if not request.or_job:  # counted as what becomes of it
                series.shed(event)
                self.tenants.of(request).shed.inc()
        elif isinstance(event, (Cancelled, Lapsed)) and request.kind is Kind.HELD:
            series.cancelled[request.priority].inc()
            self.tenants.of(request).cancelled.inc()

    def count(self, outcome: Outcome, pool: str = "", priority: Priority | None = None) -> None:
        """Count an outcome that the core never sees: passed, invalid, job_accepted."""
        class_name = "" if priority is None else priority.name
        self._families.requests.labels(pool, class_name, outcome.value).inc()

    def count_shed(self, pool: str, priority: Priority, reason: ShedReason) -> None:
        """Count a refusal of a request that admission never saw, or of a job."""
        self._pool(pool).refused(priority, reason)

    def count_unread(self, pool: str) -> None:
        """Count a governed request whose body could not be read."""
        self._pool(pool).unread.inc()

    def count_report(self, pool: str, outcome: ReportOutcome) -> None:
        """Count a load report, or a try to get one."""
        self._pool(pool).reports[outcome].inc()

    def count_ticket(self, outcome: TicketOutcome) -> None:
        """Count a ticket that was handed out, or shown."""
        self._tickets[outcome].inc()

    def observe_decision(self, seconds: float) -> None:
        """Time from the gate's message to its answer, of a request that did not wait."""
        self._decision.observe(seconds)

    def observe_loop_lag(self, seconds: float) -> None:
        """One reading of the loop-lag probe."""
        self._loop_lag.observe(seconds)

    def render(self) -> bytes:
        """The text exposition, for `/metrics`."""
        return generate_latest(self.registry)

    def totals(self) -> dict[str, dict[str, dict[str, int]]]:
        """Counts since the start for people, what never happened left out.

        {pool: {"outcomes": {"P0 admitted": n}, "sheds": {"P2 deadline": n}, "returns": {"yes": n}}}
        """
        families = self._families
        found: dict[str, dict[str, dict[str, int]]] = {}
        kinds = {"outcomes": families.requests, "sheds": families.shed, "returns": families.returns}
        for kind, counter in kinds.items():
            for sample in (s for metric in counter.collect() for s in metric.samples):
                pool, *what = sample.labels.values()
                if sample.value:
                    counts = found.setdefault(pool, {}).setdefault(kind, {})
                    counts[" ".join(what).strip()] = int(sample.value)
        return found

    def _pool(self, name: str) -> _PoolSeries:
        series = self._pools.get(name)
        if series is None:  # a pool that a reload of the configuration has added
            series = self._pools[name] = _PoolSeries(name, self._families)
        return series


class _Families:
    """The labelled metrics that each pool takes its children from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = _counter(names.REQUESTS, registry)
        self.shed = _counter(names.SHED, registry)
        self.unread = _counter(names.UNREAD, registry)
        self.returns = _counter(names.RETURNS, registry)
        self.limit_changes = _counter(names.LIMIT_CHANGES, registry)
        self.expired = _counter(names.LEASES_EXPIRED, registry)
        self.reports = _counter(names.LOAD_REPORTS, registry)
        self.wait = QuickHistogram(names.WAIT, WAIT_BUCKETS, registry)
        self.wait_error = _histogram(names.WAIT_ERROR, WAIT_ERROR_BUCKETS, registry)
        self.retry_after = _histogram(names.RETRY_AFTER, RETRY_AFTER_BUCKETS, registry)
        self.ttft = _histogram(names.TTFT, TTFT_BUCKETS, registry)
        self.tpot = _histogram(names.TPOT, TPOT_BUCKETS, registry)


class _PoolSeries:
    """The children of one pool; lists are indexed by class."""

    def __init__(self, pool: str, families: _Families) -> None:
        def outcomes(outcome: Outcome) -> list[Counter]:
            return [families.requests.labels(pool, p.name, outcome.value) for p in PRIORITIES]

        self._at_once = outcomes(Outcome.ADMITTED)
        self._queued = outcomes(Outcome.QUEUED_ADMITTED)
        self._shed = outcomes(Outcome.SHED)
        self.cancelled = outcomes(Outcome.CANCELLED)
        self.unread = families.unread.labels(pool)
        self._reasons = [
            {reason: families.shed.labels(pool, p.name, reason.value) for reason in ShedReason}
            for p in PRIORITIES
        ]
        self._wait = [families.wait.labels(pool, p.name) for p in PRIORITIES]
        self._wait_error = [families.wait_error.labels(pool, p.name) for p in PRIORITIES]
        self._retry_after = [families.retry_after.labels(pool, p.name) for p in PRIORITIES]
        self.limit_changes = {
            reason: families.limit_changes.labels(pool, reason.value)
            for reason in Reason
            if reason is not Reason.HOLD
        }
        self._kept, self._broken, self._capped = (
            families.returns.labels(pool, kept) for kept in ("yes", "no", "capped")
        )
        self._expired = families.expired.labels(pool)
        self.reports = {
            outcome: families.reports.labels(pool, outcome.value) for outcome in ReportOutcome
        }
        self._ttft = families.ttft.labels(pool)
        self._tpot = families.tpot.labels(pool)

    def admitted(self, event: Admitted) -> None:
        priority = event.request.priority
        (self._queued if event.queued else self._at_once)[priority].inc()
        self._wait[priority].observe(event.wait_s)
        if event.predicted_wait_s is not None:
            self._wait_error[priority].observe(event.wait_s - event.predicted_wait_s)
        if event.request.invited:
            self._kept.inc()

    def shed(self, event: Shed) -> None:
        priority = event.request.priority
        self._shed[priority].inc()
        self._reasons[priority][event.reason].inc()
        self._retry_after[priority].observe(event.retry_after_s)
        if event.request.invited:
            (self._capped if event.capped else self._broken).inc()

    def refused(self, priority: Priority, reason: ShedReason) -> None:
        self._shed[priority].inc()
        self._reasons[priority][reason].inc()

    def lease_ended(self, event: LeaseEnded) -> None:
        if event.ttft_s is not None:
            self._ttft.observe(event.ttft_s)
        if event.tpot_s is not None:
            self._tpot.observe(event.tpot_s)
        if event.how is LeaseEnd.EXPIRED:
            self._expired.inc()


class _PoolGauges(Collector):
    """Reads the pools at scrape time, so that no event ever pays for a gauge."""

    def __init__(self, views: Views, tenants: TenantSeries) -> None:
        self._views = views
        self._tenants = tenants

    def collect(self) -> Iterable[Metric]:
        gauges = names.LIMIT, names.INFLIGHT, names.WAITING, names.JOBS_WAITING
        others = names.ENGINE_QUEUE, names.TENANT_WAITING, names.BACKENDS_READY
        limit, inflight, waiting, jobs, queue, of_tenant, ready = (
            GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in (*gauges, *others)
        )
        for view in self._views():
            limit.add_metric([view.name], view.limit)
            inflight.add_metric([view.name], view.inflight_seats)
            for priority in PRIORITIES:
                count = view.waiting.get(priority, 0)
                waiting.add_metric([view.name, priority.name], count)
            jobs.add_metric([view.name], sum(view.jobs_waiting.values()))
            if view.engine_queue is not None:
                queue.add_metric([view.name], view.engine_queue)
            for tenant, count in self._tenants.by_label(view.held_by_tenant).items():
                of_tenant.add_metric([view.name, tenant], count)
            if view.backends_ready is not None:
                ready.add_metric([view.name], view.backends_ready)
        return limit, inflight, waiting, jobs, queue, of_tenant, ready

    def describe(self) -> Iterable[Metric]:
        """Nothing: spares the registry a call of `views` while the server is being wired."""
        return ()


def _counter(metric: MetricId, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(
    metric: MetricId, buckets: Sequence[float], registry: CollectorRegistry
) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=buckets)
