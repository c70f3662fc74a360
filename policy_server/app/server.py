"""The composition root: builds the policy server from a configuration, starts and stops it.

    journal ← driver → admission (core)        one writer, one loop
    wirings, access log, observer → driver     adapters on the gRPC port
    driver's events → metrics, logs, views     telemetry
    metrics, views → /metrics, /statusz        the HTTP port

Stopping: as `gateway`, admit nothing new, answer the holds 503 `draining`, let what is in flight
finish; as `serve`, hand the holds back so that Envoy sends them to the next server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from aiohttp import web

from policy_server import __version__
from policy_server.adapters.access_log import AccessLog
from policy_server.adapters.admin_token import AdminToken, AdminTokenError
from policy_server.adapters.desk import Desk, Hooks
from policy_server.adapters.ext_authz import ExtAuthz
from policy_server.adapters.ext_proc import ExtProc
from policy_server.adapters.ext_proc_dialogue import GateJobs
from policy_server.adapters.ext_proc_stream import SingleStream
from policy_server.adapters.grpc_server import GrpcServer, ServerTls, Services, build_grpc_server
from policy_server.adapters.http_api import HttpDeps, build_http_app
from policy_server.adapters.observer import AnswerObserver
from policy_server.adapters.rules import rules_of
from policy_server.app.backends import Backends, keda_scaler, pages_of
from policy_server.app.jobs import build_jobs
from policy_server.app.journal import JournalParts
from policy_server.app.reload import Reload, refuse_fixed_changes
from policy_server.app.tickets import TicketOffice
from policy_server.config import Config, ConfigError, split_host_port, to_pool_params
from policy_server.config_check import warnings_of
from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, LimitChanged, Waiting
from policy_server.core.outcome import Outcome, ReportOutcome, ShedReason
from policy_server.core.request import Priority
from policy_server.driver import Driver
from policy_server.envoy_config.options import Wiring
from policy_server.garbage import FullCollections
from policy_server.journal.boot import this_boot
from policy_server.journal.restore import Moment
from policy_server.lasting import Work, lasting
from policy_server.processes import TAKEN, port_trouble
from policy_server.signals.observer import parser_for
from policy_server.signals.orca import read_report
from policy_server.signals.scrape import Page, Scraper
from policy_server.telemetry.blind_spots import BlindSpots
from policy_server.telemetry.decision_log import DecisionLog
from policy_server.telemetry.history import History
from policy_server.telemetry.job_log import JobLog
from policy_server.telemetry.jobs_metrics import JobsGauge, WebhookCounter
from policy_server.telemetry.lag import LagProbe
from policy_server.telemetry.logs import get_logger
from policy_server.telemetry.metrics import Metrics
from policy_server.telemetry.overload import OverloadGuard
from policy_server.telemetry.status import status_document
from policy_server.telemetry.views import NO_SCRAPE_YET, PoolView, ScrapeView, ServerView
from policy_server.views import Views

Mode = Literal["gateway", "serve"]

DRAIN_S = 30.0  # the longest that answers in flight are waited for
STOP_GRACE_S = 2.0
HTTP_BACKLOG = 4096  # at the default of 128 a burst of event streams was refused
HTTP_STOP_S = 1.0  # twice this for an answer under way: a client that reads slowly asks again
TICK_S = 1.0


class PolicyServer:
    """Everything that runs in one policy-server process. Build it on its event loop; logging must
    be configured. `grpc` is there once it runs."""

    grpc: GrpcServer

    def __init__(
        self, config: Config, mode: Mode, wiring: Wiring = "gate", data_dir: Path | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._token = _admin_token(config)
        self._config = self._built = config
        self._mode = mode
        self._wiring = wiring
        self._started = time.monotonic()
        self._collections = FullCollections(self._started)
        self._not_ready: str | None = "starting"
        self._reload_error: str | None = None
        self._blind_spots = BlindSpots(told=wiring == "authz")
        self._log = get_logger()
        self.admission = Admission(to_pool_params(config), random.Random())
        self.metrics = Metrics(
            __version__,
            [p.name for p in config.pools],
            lambda: self._views.pools(time.monotonic()),
        )
        self._kept = JournalParts(config, data_dir, self.metrics.registry, self._log)
        self.driver = Driver(self.admission, self._kept.journal, time.monotonic, loop)
        self._scraper = Scraper(self.driver, self._count_report, self._log_report)
        self._backends = Backends(self.driver, self._log)
        self._views = Views(self.admission, self._scrapes)
        self._history = History()
        self.metrics.tenants.use(config.tenants.named)
        self._decisions = DecisionLog(self._log, lambda uid: self.driver.request_ids.get(uid, ""))
        self._job_log = JobLog(self._log)
        self._guard = OverloadGuard(
            time.monotonic(), time.thread_time, self.driver.set_lagging, self.driver.note_late
        )
        self._probe = LagProbe(loop, self._note_lag)
        metrics = self.metrics
        hooks = Hooks(metrics.observe_decision, self._guard.arrived, self.driver.request_ids)
        hooks.unread = metrics.count_unread
        self._office = TicketOffice(data_dir, time.time(), self.metrics.count_ticket)
        self.desk = Desk(self.driver, rules_of(config), hooks=hooks, tickets=self._office.tickets)
        self.jobs = build_jobs(config, self.driver, data_dir, wiring)
        self.desk.jobs = self.jobs.at_gate if self.jobs is not None else None
        counts = self.jobs.jobs.counts if self.jobs is not None else dict
        JobsGauge(self.metrics.registry, counts)
        webhooks = WebhookCounter(self.metrics.registry)
        if self.jobs is not None:
            self.jobs.tell(self._job_log, webhooks.count)
        self._keda = keda_scaler(self.admission)
        self._services = self._build_services()
        self.driver.listen(self._keda.on_event, Waiting, Admitted)
        self.driver.listen(self.metrics.on_event)
        self.driver.listen(self._decisions.on_event)
        self.driver.listen(self._views.on_event, LimitChanged)
        self.driver.on_count = self._count
        self.driver.on_report = self._count_report

    def _build_services(self) -> Services:
        observer = AnswerObserver(self.driver, parser_for, read_report)
        intake = self.jobs.intake if self.jobs is not None else None
        return Services(
            gate=ExtProc(self.desk, observer),
            jobs=GateJobs(self.desk, observer, intake),
            stream=SingleStream(self.desk, observer, read_report, intake),
            authz=ExtAuthz(self.desk, intake),
            access_log=AccessLog(self.driver, read_report),
            keda=self._keda,
            streams_by_default=self._wiring == "stream",
        )

    def _build_grpc(self) -> GrpcServer:
        tls = self._config.server.tls
        try:
            return build_grpc_server(
                self._config.server.grpc,
                self._services,
                ServerTls(tls.cert, tls.key, tls.client_ca) if tls is not None else None,
                int(self._config.jobs.max_body),
            )
        except OSError as error:
            raise ConfigError(f"server.grpc: {error}") from None

    def _count(
        self, pool: str, priority: Priority, outcome: Outcome, reason: ShedReason | None
    ) -> None:
        if outcome is Outcome.PASSED:
            self.metrics.count(outcome)
        elif outcome is Outcome.SHED:
            self.metrics.count_shed(pool, priority, reason or ShedReason.OVERLOADED)
        else:
            self.metrics.count(outcome, pool, priority)

    def _note_lag(self, seconds: float) -> None:
        self.metrics.observe_loop_lag(seconds)
        self._guard.reading(seconds, time.monotonic())

    def _count_report(self, pool: str, outcome: ReportOutcome) -> None:
        self.metrics.count_report(pool, outcome)
        if outcome is ReportOutcome.USED:
            self._blind_spots.report_used(pool, time.monotonic())

    def _log_report(self, page: Page, outcome: ReportOutcome) -> None:
        good = outcome is ReportOutcome.USED
        say = self._log.info if good else self._log.warning
        say("load_reports", pool=page.pool, path=page.source, state=outcome.value)

    def _scrapes(self, pool: str, now: float) -> list[ScrapeView]:
        return [
            ScrapeView(source, NO_SCRAPE_YET)
            if last is None
            else ScrapeView(source, last.outcome.value, now - last.at)
            for source, last in self._scraper.last_tries(pool)
        ]

    # -- life ---------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve inside the block; on leaving it, whatever runs is stopped, after a failed start
        what had begun. Raises ConfigError when a port is taken or the journal is not ours."""
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(self._office.close)
            await self._start(ends)
            self._not_ready = None
            self._say_started()
            try:
                yield
            finally:
                self._not_ready = "stopping"
        self._log.info("stopped")

    async def _start(self, ends: contextlib.AsyncExitStack) -> None:
        """Begin everything, and tell `ends` how each thing stops; they stop in reverse."""
        self._kept.open()  # first: whoever serves here lets go of its ports before its journal
        ends.push_async_callback(self.driver.stop)
        self._office.open(time.time())
        self._check_ports()
        self.driver.start(Moment(time.monotonic(), time.time(), this_boot()))
        if self.jobs is not None:
            ends.push_async_callback(self.jobs.jobs.stop)
            await self.jobs.take_up()
        for name, work in self._work().items():
            ends.callback(asyncio.create_task(lasting(name, work)).cancel)
        ends.push_async_callback((await self._start_http()).cleanup)
        self._collections.take_over()  # before the first stream: it stops the loop for a moment
        self.grpc = self._build_grpc()
        await self.grpc.start()
        ends.push_async_callback(self.grpc.stop, STOP_GRACE_S)
        for let_go in (self._keda.let_go, self._services.stream.let_go):
            ends.callback(let_go)
        self._probe.start()
        ends.callback(self._probe.stop)
        for asking in (self._backends, self._scraper):
            ends.push_async_callback(asking.stop)
        self._scraper.use(pages_of(self._config))
        self._backends.use(self._config)

    def _check_ports(self) -> None:
        """Before any job is sent: a process that can't listen must not run one."""
        server = self._config.server
        for name, address in (("server.grpc", server.grpc), ("server.http", server.http)):
            why = port_trouble(*split_host_port(address))
            if why is not None:
                stop = " or stop who holds it" if why == TAKEN else ""
                raise ConfigError(
                    f"{name}: cannot listen on {address}, {why}; choose another address{stop}"
                )

    def _work(self) -> dict[str, Work]:
        """What runs beside the streams."""
        own: dict[str, Work] = {"the tick": self._tick, "handing back": self.desk.hand_back_holds}
        own["the beat of streams"] = self._services.stream.beat
        return own | (self.jobs.work() if self.jobs is not None else {})

    def _say_started(self) -> None:
        self._log.info(
            "started",
            version=__version__,
            grpc=self._config.server.grpc,
            http=self._config.server.http,
            pools=[p.name for p in self._config.pools],
        )
        now = time.monotonic()
        for warning in self._blind(self._views.pools(now), now):
            self._log.warning("blind", detail=warning)
        for warning in warnings_of(self._config):
            self._log.warning("config", detail=warning)

    async def _start_http(self) -> web.AppRunner:
        deps = HttpDeps(
            self.metrics.render,
            self._status,
            lambda: self._history.document(time.monotonic()),
            lambda: self._not_ready,
            self._token,
            self.jobs.api if self.jobs is not None else None,
        )
        runner = web.AppRunner(build_http_app(deps), access_log=None, shutdown_timeout=HTTP_STOP_S)
        await runner.setup()
        host, port = split_host_port(self._config.server.http)
        try:
            await web.TCPSite(runner, host, port, backlog=HTTP_BACKLOG).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"server.http: cannot listen on {self._config.server.http}: {error.strerror}; "
                "choose another address or stop who holds it"
            ) from None
        return runner

    async def drain(self) -> None:
        """What SIGTERM asks for, up to the moment at which the process may end."""
        self._not_ready = "draining"
        await self.grpc.stop_accepting()
        if self._mode == "serve":
            self.driver.hand_back()
            while self.desk.holding:  # noqa: ASYNC110 (once, at shutdown)
                await asyncio.sleep(0.01)
            return
        await self.driver.shed_all()
        if not await self.driver.idle(DRAIN_S):
            self._log.warning("stopped with answers in flight", count=self.admission.inflight())

    def reload(self, how: Reload) -> None:
        """SIGHUP: new rules and budgets for new arrivals; a mistake changes nothing."""
        try:
            config = how.read()
            refuse_fixed_changes(how.built or self._built, config)
        except ConfigError as error:
            self._reload_error = f"the last reload was refused: {error}"
            self._log.error("reload refused", error=str(error))
            return
        self._reload_error = None
        self.driver.reconfigure(to_pool_params(config))
        self.desk.use(rules_of(config))
        if self.jobs is not None:
            self.jobs.use(config)
        self.metrics.tenants.use(config.tenants.named)
        self._config = config
        self._scraper.use(pages_of(config))
        self._backends.use(config)
        self._log.info("reloaded", pools=[p.name for p in config.pools])
        if how.accepted is not None:
            try:
                how.accepted(config)
            except OSError as error:
                self._reload_error = (
                    "the last reload is in force, but not kept: after a crash the configuration "
                    f"before it holds ({error.strerror}); reload again"
                )
                self._log.error("reload not kept", error=self._reload_error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._decisions.tick(now)
            self._job_log.tick(now)
            self._office.tick(time.time())
            self._kept.tick()
            self._collections.tick(self.admission.waiting(), now)
            if self._history.due(now):
                self._history.sample(now, self._views.pools(now), self.metrics.totals())

    def _status(self) -> dict[str, object]:
        now, totals = time.monotonic(), self.metrics.totals()
        pools = [
            replace(pool, rates=self._history.rates(pool.name, now, totals.get(pool.name, {})))
            for pool in self._views.pools(now)
        ]
        return status_document(self._server_view(pools, now), totals)

    def _server_view(self, pools: Sequence[PoolView], now: float) -> ServerView:
        return ServerView(
            version=__version__,
            uptime_s=now - self._started,
            config_digest=_digest(self._config),
            not_ready=self._not_ready,
            loop_lag_s=self._probe.current_s,
            lagging=self._guard.lagging,
            pools=pools,
            nodes=self._views.nodes(now),
            journal=self._kept.view(),
            jobs=self.jobs.view() if self.jobs is not None else None,
            warnings=[*self._problems(), *self._blind(pools, now), *self._backends.problems()],
        )

    def _problems(self) -> list[str]:
        jobs = self.jobs.jobs.problem if self.jobs is not None else None
        said = (self._reload_error, self._office.problem, self._kept.warning(), jobs)
        return [problem for problem in said if problem is not None]

    def _blind(self, pools: Iterable[PoolView], now: float) -> list[str]:
        spots = self._blind_spots
        unknown = spots.strangers(self.desk.counts.strangers, now)
        return [*spots.warnings(pools, self._services.authz.asked, now), *unknown]


def _admin_token(config: Config) -> AdminToken | None:
    path = config.server.admin_token_file
    if path is None:
        return None
    token = AdminToken(path)
    try:
        token.load()
    except AdminTokenError as error:
        raise ConfigError(f"server.admin_token_file: {error}") from None
    return token


def _digest(config: Config) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]
