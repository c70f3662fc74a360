"""Who is ready, how full, and how many should be: the back ends' side of the server, wired."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from policy_server.adapters.keda import KedaScaler
from policy_server.config import Config
from policy_server.config_pools import PoolConfig
from policy_server.core.admission import Admission
from policy_server.core.demand import Demand, demand_of
from policy_server.driver import Driver
from policy_server.envoy_config.options import UPSTREAM_CLUSTER
from policy_server.signals.readiness import Readiness, Source, Told
from policy_server.signals.scrape import Page, spread


def pages_of(config: Config) -> list[Page]:
    """The engines' pages that the configuration names."""
    return [
        page
        for pool in config.pools
        for page in spread(
            pool.name,
            pool.load_reports.scrape,
            pool.load_reports.interval_s,
            _ca_file(pool),
        )
    ]


def _ca_file(pool: PoolConfig) -> str | None:
    return None if pool.ca_file is None else str(pool.ca_file)


class Backends:
    """Follows the back ends of every pool that names who tells of them."""

    def __init__(self, driver: Driver, log: FilteringBoundLogger) -> None:
        self._log = log
        self._readiness = Readiness(driver.backends, self._say)
        self._pools: list[str] = []

    def use(self, config: Config) -> None:
        """Ask whom this configuration names from now on."""
        sources = [
            Source(
                pool.name,
                pool.backends.probe,
                pool.backends.envoy_admin,
                pool.match.cluster or UPSTREAM_CLUSTER,
                pool.backends.count,
                _ca_file(pool),
            )
            for pool in config.pools
            if pool.backends.known
        ]
        self._pools = [source.pool for source in sources]
        self._readiness.use(sources)

    async def stop(self) -> None:
        """Ask nobody any more."""
        await self._readiness.stop()

    def problems(self) -> list[str]:
        """What keeps a pool from knowing its back ends, one sentence each."""
        told = {pool: self._readiness.told(pool) for pool in self._pools}
        unknown = [
            f"pool {pool}: who is ready is not known: {said.error}; check backends.envoy_admin"
            for pool, said in told.items()
            if said is not None and said.error
        ]
        return unknown + [
            f"pool {pool}: {said.ready} back ends are ready; a probe fails: {said.failing}"
            for pool, said in told.items()
            if said is not None and said.failing
        ]

    def _say(self, pool: str, told: Told) -> None:
        say = self._log.warning if told.error or told.ready == 0 else self._log.info
        say("backends", pool=pool, count=told.ready, error=told.error or told.failing)


def keda_scaler(admission: Admission) -> KedaScaler:
    """KEDA's service over the running pools."""

    def names() -> list[str]:
        return [pool.params.name for pool in admission.pools()]

    def demand(name: str) -> Demand | None:
        return demand_of(admission.pool(name)) if name in names() else None

    return KedaScaler(names, demand)
