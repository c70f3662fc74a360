"""Builds what jobs need, when the configuration has a way to send them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from policy_server.adapters.job_intake import JobIntake
from policy_server.adapters.jobs_api import JobsApi, JobsApiDeps
from policy_server.adapters.rules import rules_of
from policy_server.config import Config, ConfigError
from policy_server.config_jobs import caller_mark, takes_jobs
from policy_server.driver import Driver
from policy_server.envoy_config.options import Wiring
from policy_server.jobs.addresses import AllowList
from policy_server.jobs.bounds import Bound
from policy_server.jobs.service import Jobs
from policy_server.jobs.settings import JobRules, Via, Webhooks
from policy_server.jobs.vault import (
    ACCEPT,
    LOST_VARIABLE,
    Vault,
    VaultError,
    key_that_is_there,
    load_key,
)
from policy_server.jobs.webhooks import Hooks, WebhookSender
from policy_server.journal.jobs import Job, JobStore, WebhookOutcome
from policy_server.journal.jobs_memory import MemoryJobs
from policy_server.journal.port import Journal
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.lasting import Work
from policy_server.telemetry.job_log import JobLog


class JobParts:
    """Jobs, their webhooks and their API, wired. `config` may be replaced with `use`."""

    def __init__(
        self, config: Config, driver: Driver, store: JobStore, vault: Vault, wiring: Wiring
    ) -> None:
        self._config = config
        self._sends = takes_jobs(config)
        self.webhooks = WebhookSender(store, _hooks(config), vault)
        self.jobs = Jobs(
            driver,
            store,
            vault,
            Via(str(config.jobs.via) if self._sends else "", observable=wiring != "authz"),
            _rules(config),
            Webhooks(self.webhooks.allowed, self.webhooks.wake),
        )
        self.intake = JobIntake(self.jobs, driver) if self._sends else None
        self.api = JobsApi(
            JobsApiDeps(
                self.jobs, lambda: rules_of(self._config), lambda: caller_mark(self._config)
            )
        )

    def tell(self, log: JobLog, count: Callable[[WebhookOutcome], None]) -> None:
        """Who hears of what becomes of jobs and webhooks."""

        def said(job: Job, outcome: WebhookOutcome, detail: str) -> None:
            count(outcome)
            log.webhook(job, outcome, detail)

        self.webhooks.said = said
        self.jobs.ended = log.ended
        if self.intake is not None:
            self.intake.refused = log.refused

    def use(self, config: Config) -> None:
        """Another configuration: lifetimes, bounds and webhooks."""
        self._config = config
        self.jobs.rules = _rules(config)
        self.webhooks.hooks = _hooks(config)

    @property
    def at_gate(self) -> Jobs | None:
        """What the gate may know of them; None = there is no way to send them."""
        return self.jobs if self._sends else None

    def view(self) -> dict[str, object] | None:
        """The section of `/statusz`; None = there are none, and none are taken."""
        counts: dict[str, object] = {s.value: n for s, n in self.jobs.counts().items()}
        if not self._sends and not any(counts.values()):
            return None
        view = {**counts, "ended_bytes": self.jobs.ended_bytes()}
        return {**view, "via": str(self._config.jobs.via) if self._sends else None}

    async def take_up(self) -> None:
        """Take up what an earlier process left, as far as the disk can say now. Raises ConfigError
        when its secrets need another key."""
        await self.jobs.restore()
        if self.jobs.key_problem is not None:
            raise ConfigError(self.jobs.key_problem)

    def work(self) -> dict[str, Work]:
        """What runs beside the server."""
        return {
            "the beat of jobs": self.jobs.beat,
            "the sweep of jobs": self.jobs.sweep,
            "the tidying of jobs": self.jobs.tidy,
            "webhooks": self.webhooks.run,
        }


def build_jobs(
    config: Config, driver: Driver, data_dir: Path | None, wiring: Wiring
) -> JobParts | None:
    """The parts, None when there are no jobs. Raises ConfigError when the key is of no use."""
    store = _beside(driver.journal)
    folder = data_dir or Path("data")
    if not takes_jobs(config):  # what was accepted when there was a way is still there
        if not isinstance(store, SqliteJobs):
            return None
        vault = Vault(key_that_is_there(folder, os.environ))
        return JobParts(config, driver, store, vault, wiring)
    try:
        key = load_key(folder, os.environ)
    except VaultError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"--data-dir: {error.filename}: {error.strerror}") from None
    return JobParts(config, driver, store, Vault(key), wiring)


def _beside(journal: Journal) -> JobStore:
    """The store of jobs in the journal's file; in memory where the journal is."""
    return SqliteJobs(journal.store) if isinstance(journal, SqliteJournal) else MemoryJobs()


def _rules(config: Config) -> JobRules:
    jobs = config.jobs
    return JobRules(
        int(jobs.max_body),
        jobs.queue_ttl_s,
        jobs.result_ttl_s,
        Bound(jobs.max_jobs, int(jobs.max_bytes)),
        Bound(jobs.tenant_max_jobs, int(jobs.tenant_max_bytes)),
        int(jobs.max_result_bytes),
        rules_of(config).tenant.header,
        os.environ.get(LOST_VARIABLE) == ACCEPT,
    )


def _hooks(config: Config) -> Hooks:
    hooks = config.jobs.webhooks
    return Hooks(AllowList.parse(hooks.allow), hooks.secrets)
