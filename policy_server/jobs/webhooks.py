"""Webhooks: the end of a job, told to the URL that came with it (Standard Webhooks).

    webhook-id          the job's id, the same at every try
    webhook-timestamp   when it was sent
    webhook-signature   of the tenant's secret (`jobs.webhooks.secrets`)

What is due stands in the store, so tries survive a restart. 2xx = told; 410 = never again; anything
else is tried again after `PAUSES_S`. Redirects are not followed: they would lead past the list.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import aiohttp
from standardwebhooks.webhooks import Webhook
from yarl import URL

from policy_server.config_jobs import JOBS_PATH
from policy_server.jobs.addresses import AllowList, PinnedResolver
from policy_server.jobs.vault import Vault, VaultError, in_the_open
from policy_server.jobs.webhook_lines import Lines, line_of
from policy_server.journal.jobs import DueWebhook, Job, JobStore, WebhookOutcome
from policy_server.journal.port import JournalError

PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 18_000.0)
"""Between the tries; about eight hours in all."""
TIMEOUT_S = 15.0
AT_ONCE = 64
LOOK_S = 1.0
QUICK_LOOK_S, RESTS_PER_LOOK, LONGEST_REST_S = 0.02, 4.0, 5.0
"""Who has 100,000 ends told to a receiver that hangs makes a look take a second."""
ANY_TENANT = "*"
GONE = 410


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the configuration says. `secrets` by tenant; "*" is for those without one."""

    allow: AllowList
    secrets: Mapping[str, str]

    def secret_of(self, tenant: str) -> str | None:
        """What this tenant's webhooks are signed with."""
        return self.secrets.get(tenant) or self.secrets.get(ANY_TENANT)

    def allowed(self, url: str, tenant: str) -> bool:
        """Whether a job of this tenant may have this webhook."""
        return self.secret_of(tenant) is not None and self.allow.takes_url(url)


@dataclass(frozen=True, slots=True)
class Try:
    """How one went: `detail` for people, without the URL's path. `answered`: anybody did, or nobody
    was asked."""

    outcome: WebhookOutcome
    detail: str = ""
    answered: bool = True


class WebhookSender:
    """Tells what is due, so many at once that no receiver waits for another. `said` hears of each
    try, with what went wrong."""

    def __init__(self, store: JobStore, hooks: Hooks, vault: Vault) -> None:
        self.hooks = hooks
        """May be replaced by those of another configuration."""
        self.said: Callable[[Job, WebhookOutcome, str], None] = lambda *_: None
        self._store = store
        self._vault = vault
        self._session: aiohttp.ClientSession | None = None
        self._bell = asyncio.Event()
        self._lines = Lines()
        self._tasks: set[asyncio.Task[None]] = set()

    def allowed(self, url: str, tenant: str) -> bool:
        """Whether a job of this tenant may have this webhook."""
        return self.hooks.allowed(url, tenant)

    def wake(self) -> None:
        """Something is due."""
        self._bell.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._bell.clear()
                took_s = await self._look()
                if took_s > QUICK_LOOK_S:  # the store's one reader is there for others, too
                    await asyncio.sleep(min(RESTS_PER_LOOK * took_s, LONGEST_REST_S))
                await self._rest()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def _look(self) -> float:
        """Begin what may begin; how long it took to find that, seconds."""
        began = asyncio.get_running_loop().time()
        await self._begin()
        return asyncio.get_running_loop().time() - began

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._bell.wait()

    async def _begin(self) -> None:
        """Begin to tell what there is room for."""
        room = AT_ONCE - len(self._tasks)
        if room <= 0:
            return
        try:
            due = await self._store.due_webhooks(time.time(), room, self._lines.full())
        except JournalError:
            return
        for one in due:
            self._lines.begin(one.job)  # before anybody looks again
            task = asyncio.create_task(self._tell(one))
            self._tasks.add(task)
            task.add_done_callback(partial(self._told, one.job))

    def _told(self, job: Job, task: asyncio.Task[None]) -> None:
        self._lines.end(job)
        self._tasks.discard(task)
        self._bell.set()

    async def _tell(self, due: DueWebhook) -> None:
        try:
            made = await self._post(due.job)
            await self._note(due, made)
            if made.answered:
                self._lines.well(due.job)
            else:
                await self._wait_with(due.job)
        except JournalError:
            await asyncio.sleep(LOOK_S)  # it is still due: not at once
        except Exception as error:  # a mistake of ours with one is no reason to stop telling
            context = {"message": f"webhook of job {due.job.id}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            await asyncio.sleep(LOOK_S)

    async def _note(self, due: DueWebhook, made: Try) -> None:
        tries, pause, outcome = due.tries + 1, None, made.outcome
        if outcome is WebhookOutcome.FAILED and tries <= len(PAUSES_S):
            pause = PAUSES_S[tries - 1]
        elif outcome is WebhookOutcome.FAILED:
            outcome = WebhookOutcome.DROPPED
        await self._store.webhook_tried(
            due.job.id, tries, None if pause is None else time.time() + pause
        )
        again = "" if pause is None else f"; again in {pause:.0f} s"
        self.said(due.job, outcome, f"{in_the_open(due.job.webhook)} {made.detail}{again}")

    async def _wait_with(self, job: Job) -> None:
        """Nobody answered: whatever else goes there from this owner need not find that out now."""
        now = time.time()
        pause = self._lines.away(job, now)
        if pause is not None:
            line = line_of(job.owner, job.webhook)
            await self._store.webhooks_wait(
                now, now + pause, lambda _, owner, url: line_of(owner, url) == line
            )

    async def _post(self, job: Job) -> Try:
        secret = self.hooks.secret_of(job.owner)
        try:
            url = self._vault.open_url(job.id, job.webhook)
        except VaultError:  # the key may come back
            return Try(WebhookOutcome.FAILED, "was not called: its URL was sealed by another key")
        if secret is None or not self.hooks.allow.takes_url(url):
            return Try(WebhookOutcome.DROPPED, "was not called: it is not allowed any more")
        body = json.dumps(document(job))
        now = datetime.now(UTC)
        try:
            signature = Webhook(secret).sign(job.id, now, body)
            async with self._open().post(
                _as_it_came(url),
                data=body.encode(),
                allow_redirects=False,
                headers={
                    "content-type": "application/json",
                    "webhook-id": job.id,
                    "webhook-timestamp": str(int(now.timestamp())),
                    "webhook-signature": signature,
                },
            ) as answer:
                return Try(_outcome_of(answer.status), f"answered {answer.status}")
        except TimeoutError:
            return Try(WebhookOutcome.FAILED, f"did not answer in {TIMEOUT_S:.0f} s", False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Try(WebhookOutcome.FAILED, f"did not answer: {_what(error)}", False)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=PinnedResolver(lambda: self.hooks.allow, AT_ONCE),
                    limit=AT_ONCE,
                    use_dns_cache=False,
                    force_close=True,
                ),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _outcome_of(status: int) -> WebhookOutcome:
    if status == GONE:
        return WebhookOutcome.DROPPED
    return WebhookOutcome.SENT if 200 <= status < 300 else WebhookOutcome.FAILED


def _what(error: Exception) -> str:
    """For people; an error that may quote the URL is named only."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error) or type(error).__name__
    return type(error).__name__


def _as_it_came(url: str) -> URL:
    """A signed URL must not be written another way; one that can't be sent so is quoted."""
    return URL(url, encoded=url.isascii() and url.isprintable() and " " not in url)


def document(job: Job) -> dict[str, object]:
    """What is told: enough to know the job by, nothing of its content."""
    where = f"{JOBS_PATH}/{job.id}"
    return {
        "type": f"job.{job.state.value}",
        "timestamp": datetime.fromtimestamp(job.changed_at, UTC).isoformat(),
        "data": {
            "id": job.id,
            "status": job.state.value,
            "response_status": job.status,
            "detail": job.detail,
            "created_at": job.created_at,
            "changed_at": job.changed_at,
            "response": f"{where}/response",
        },
    }
