"""Webhooks at a real receiver: signed, tried again over a restart, never led astray."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from policy_server.core.request import Priority
from policy_server.jobs import webhooks
from policy_server.jobs.addresses import AllowList
from policy_server.jobs.vault import Vault
from policy_server.jobs.webhook_lines import FIRST_REST_S, PER_LINE, PER_OWNER, Lines
from policy_server.jobs.webhooks import Hooks, WebhookSender
from policy_server.journal.jobs import (
    DueWebhook,
    Ending,
    Job,
    JobRequest,
    JobState,
    NewJob,
    Taken,
    WebhookOutcome,
    nobody,
)
from policy_server.journal.jobs_memory import MemoryJobs
from tests.support import virtual_loop

SENT, FAILED, DROPPED = WebhookOutcome
SECRET = "whsec_" + base64.b64encode(b"a secret of acme").decode()
VAULT = Vault(bytes(32))
HOOKS = Hooks(AllowList.parse(["127.0.0.1/32"]), {"acme": SECRET})


@dataclass
class Receiver:
    """Answers with the statuses it is given, then 204."""

    statuses: list[int] = field(default_factory=list)
    calls: list[tuple[dict[str, str], str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.append(request.raw_path)
        self.calls.append((dict(request.headers), await request.text()))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"location": "/elsewhere"})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http://127.0.0.1:{port}/hook"
    yield receiver
    await runner.cleanup()


async def ended_job(store: MemoryJobs, url: str, tenant: str = "acme") -> Job:
    now = time.time()
    number = sum(store.counts().values())
    job = Job(
        *(f"{number:032x}", tenant, "chat", Priority.P1, "POST", "/", now, now + 60),
        webhook=url,
        owner=tenant,
    )
    await store.accept(NewJob(job, JobRequest("h", (), b"", b""), f"uid{number}", "", b""))
    ended = await store.finish(Ending(job.id, JobState.DONE, now))
    assert ended is not None
    return ended


class Outcomes(list[WebhookOutcome]):
    """What became of each try, and what is said of it."""

    def __init__(self) -> None:
        super().__init__()
        self.details: list[str] = []


@contextlib.asynccontextmanager
async def sending(
    store: MemoryJobs, hooks: Hooks = HOOKS, vault: Vault = VAULT
) -> AsyncIterator[Outcomes]:
    """The sender at work."""
    outcomes = Outcomes()
    heard = asyncio.Event()

    def said(_: Job, outcome: WebhookOutcome, detail: str) -> None:
        outcomes.append(outcome)
        outcomes.details.append(detail)
        heard.set()

    sender = WebhookSender(store, hooks, vault)
    sender.said = said
    task = asyncio.create_task(sender.run())
    async with asyncio.timeout(20):
        while await store.due_webhooks(time.time(), 1):
            heard.clear()
            await heard.wait()
    yield outcomes
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_the_end_is_told_once_and_signed(receiver: Receiver) -> None:
    store = MemoryJobs()
    job = await ended_job(store, receiver.url)
    async with sending(store) as outcomes:
        assert outcomes == [SENT]
    ((headers, body),) = receiver.calls
    told = Webhook(SECRET).verify(body, headers)
    assert told["type"] == "job.done"
    assert told["data"]["id"] == job.id
    lowered = {name.lower(): value for name, value in headers.items()}
    assert lowered["webhook-id"] == job.id
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_b3RoZXI=").verify(body, headers)


async def test_what_is_sealed_is_called_as_it_came_and_by_who_has_the_key(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "PAUSES_S", (0.0,))
    store, url = MemoryJobs(), receiver.url + "/T0/B0?token=s%2Fecret"
    job_id = f"{0:032x}"  # the id that `ended_job` gives
    kept = VAULT.seal_url(job_id, url)
    assert "ecret" not in kept
    job = await ended_job(store, kept)
    assert job.id == job_id
    async with sending(store, vault=Vault(b"x" * 32)) as outcomes:
        assert outcomes == [FAILED, DROPPED]
    assert receiver.calls == []
    store = MemoryJobs()
    await ended_job(store, kept)
    async with sending(store) as outcomes:
        assert outcomes == [SENT]
    assert receiver.paths == ["/hook/T0/B0?token=s%2Fecret"]


async def test_a_failure_is_tried_again_over_a_restart(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "PAUSES_S", (0.0,) * 7)
    receiver.statuses = [500, 302, 404]
    store = MemoryJobs()
    await ended_job(store, receiver.url)
    async with sending(store.reopen()) as outcomes:
        assert outcomes == [FAILED, FAILED, FAILED, SENT]
    assert len({headers["webhook-id"] for headers, _ in receiver.calls}) == 1


async def test_it_is_given_up_after_the_last_pause(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "PAUSES_S", (0.0, 0.0))
    receiver.statuses = [500] * 10
    store = MemoryJobs()
    await ended_job(store, receiver.url)
    async with sending(store) as outcomes:
        assert outcomes == [FAILED, FAILED, DROPPED]


async def test_the_next_try_comes_after_its_pause(receiver: Receiver) -> None:
    receiver.statuses = [500]
    store = MemoryJobs()
    job = await ended_job(store, receiver.url)
    async with sending(store):
        assert await store.due_webhooks(time.time() + 4.0, 1) == []
        (due,) = await store.due_webhooks(time.time() + 5.1, 1)
    assert (due.job.id, due.tries) == (job.id, 1)


async def test_what_went_wrong_is_said_without_the_path(receiver: Receiver) -> None:
    receiver.statuses = [500]
    store = MemoryJobs()
    await ended_job(store, VAULT.seal_url(f"{0:032x}", f"{receiver.url}?token=secret"))
    where = receiver.url.rpartition("/")[0]
    async with sending(store) as outcomes:
        assert outcomes.details == [f"{where} answered 500; again in 5 s"]
    away = MemoryJobs()
    await ended_job(away, "http://127.0.0.1:1/hook?token=secret")
    async with sending(away) as outcomes:
        (detail,) = outcomes.details
    assert detail.startswith("http://127.0.0.1:1 did not answer: ")
    assert "refused" in detail.lower() or "connect" in detail.lower()
    assert "secret" not in detail


async def test_gone_means_never_again(receiver: Receiver) -> None:
    receiver.statuses = [410]
    store = MemoryJobs()
    await ended_job(store, receiver.url)
    async with sending(store) as outcomes:
        assert outcomes == [DROPPED]


async def test_what_is_no_longer_allowed_is_not_called(receiver: Receiver) -> None:
    store = MemoryJobs()
    await ended_job(store, receiver.url)
    await ended_job(store, receiver.url, tenant="without-a-secret")
    async with sending(store, Hooks(AllowList(), {"acme": SECRET})) as outcomes:
        assert outcomes == [DROPPED, DROPPED]
        assert outcomes.details[0].endswith(" was not called: it is not allowed any more")
    assert receiver.calls == []


async def test_a_name_that_leads_to_this_machine_is_not_called(receiver: Receiver) -> None:
    store = MemoryJobs()
    await ended_job(store, receiver.url.replace("127.0.0.1", "localhost"))
    async with sending(store, Hooks(AllowList.parse(["localhost"]), {"*": SECRET})) as outcomes:
        assert outcomes == [FAILED]
        assert "localhost has no address that a webhook may go to" in outcomes.details[0]
    assert receiver.calls == []


@contextlib.asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """A receiver that takes connections and says nothing."""
    left: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: left.append(writer), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    for writer in left:
        writer.close()
    server.close()


async def test_a_receiver_that_hangs_keeps_no_other_waiting(receiver: Receiver) -> None:
    store = MemoryJobs()
    async with silence() as dead:
        for _ in range(100):
            await ended_job(store, dead)
        await ended_job(store, receiver.url)
        sender = WebhookSender(store, HOOKS, VAULT)
        said = asyncio.Event()
        sender.said = lambda *_: said.set()
        task = asyncio.create_task(sender.run())
        async with asyncio.timeout(10):  # the dead one is given up after 15 s at the earliest
            await said.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(receiver.calls) == 1


async def test_where_nobody_answers_the_rest_waits_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.1)
    store = MemoryJobs()
    async with silence() as dead:
        for _ in range(20):
            await ended_job(store, dead)
        await ended_job(store, dead, tenant="other")
        hooks = Hooks(AllowList.parse(["127.0.0.1/32"]), {"*": SECRET})
        async with sending(store, hooks) as outcomes:
            assert set(outcomes) == {FAILED}
            assert len(outcomes) <= 1 + PER_LINE
    due = await store.due_webhooks(time.time() + FIRST_REST_S, 99)
    assert len(due) == 21
    assert sum(one.tries for one in due) == len(outcomes)


def test_a_line_rests_longer_each_time_and_is_its_owners_own() -> None:
    lines = Lines()

    def hook(job_id: str, owner: str, url: str = "https://h:1/a") -> Job:
        job = Job(job_id, owner, "chat", Priority.P1, "POST", "/", 0.0, 0.0)
        return replace(job, owner=owner, webhook=url)

    mine = hook("1", "a")
    assert lines.away(mine, 100.0) == FIRST_REST_S
    assert lines.away(mine, 104.0) is None, "it rests already"
    assert lines.away(hook("2", "b"), 104.0) == FIRST_REST_S
    assert lines.away(mine, 106.0) == 2 * FIRST_REST_S
    lines.well(hook("3", "a", "https://H:1/other"))
    assert lines.away(mine, 107.0) == FIRST_REST_S
    for number in range(PER_LINE):
        lines.begin(hook(f"x{number}", "a"))
    full = lines.full()
    assert full("new", "a", "https://h:1/b")
    assert full("x0", "a", "https://elsewhere/"), "the same job"
    assert not full("new", "a", "https://h:2/")
    assert not full("new", "b", "https://h:1/b")
    lines.end(hook("x0", "a"))
    assert full("new", "a", "https://h:1/b"), "as it was when it was asked for"
    assert not lines.full()("new", "a", "https://h:1/b")
    many = lines.full()
    passed = sum(not many(f"m{n}", "a", f"https://h{n}/") for n in range(3 * PER_OWNER))
    assert passed == PER_OWNER - PER_LINE + 1
    assert not many("new", "b", "https://h/")


class LongList(MemoryJobs):
    """A store in which looking takes a second: there is much to pass by. Something ends all the
    time."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.sender: WebhookSender | None = None

    async def due_webhooks(self, now: float, limit: int, taken: Taken = nobody) -> list[DueWebhook]:
        self.looks += 1
        await asyncio.sleep(1.0)
        assert self.sender is not None
        self.sender.wake()
        return []


def test_looking_for_what_is_due_takes_a_fifth_of_the_reader_at_most() -> None:
    async def scenario() -> int:
        store = LongList()
        sender = store.sender = WebhookSender(store, HOOKS, VAULT)
        task = asyncio.create_task(sender.run())
        await asyncio.sleep(100.0)
        task.cancel()
        return store.looks

    assert 15 <= virtual_loop.run(scenario()) <= 21
