"""The HTTP API of jobs: who sees what, and answers as they came."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer

from policy_server.adapters import jobs_api
from policy_server.adapters.admin_token import AdminToken
from policy_server.adapters.http_api import HttpDeps, build_http_app
from policy_server.adapters.jobs_api import JobsApi, JobsApiDeps
from policy_server.adapters.ports import JobDesk
from policy_server.adapters.rules import ClassifyRules, TenantSource
from policy_server.config import Config
from policy_server.config_jobs import caller_mark
from policy_server.core.request import Priority
from policy_server.journal.jobs import Answer, AnswerHead, Job, JobEvent, JobState
from policy_server.journal.port import JournalUnavailableError
from policy_server.memory import Memory
from tests.support.jobs_stage import until

TOKEN = "a-very-secret-token"


def job(job_id: str, tenant: str = "acme", state: JobState = JobState.DONE) -> Job:
    made = Job(job_id, tenant, "default", Priority.P1, "POST", "/x", 1.0, 2.0, state)
    return replace(made, owner=tenant)


@dataclass
class FakeJobs:
    """A few jobs."""

    jobs: list[Job] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    down: bool = False

    async def find(self, job_id: str) -> Job | None:
        if self.down:
            raise JournalUnavailableError("journal.db: the disk is full")
        return next((one for one in self.jobs if one.id == job_id), None)

    async def listed(self, owner: str | None, limit: int) -> list[Job]:
        return [one for one in self.jobs if owner in (None, one.owner)][:limit]

    async def answer_head(self, job_id: str) -> AnswerHead | None:
        found = self.answers.get(job_id)
        return found and AnswerHead(found.status, found.headers, len(found.body))

    async def answer_part(self, job_id: str, start: int, size: int) -> bytes | None:
        found = self.answers.get(job_id)
        return None if found is None else found.body[start : start + size]

    async def events(self, job_id: str, after: int) -> AsyncIterator[JobEvent | None]:
        yield JobEvent(1, JobState.QUEUED, 1.0)
        yield None
        await asyncio.sleep(0)
        yield JobEvent(2, JobState.DONE, 2.0, "a\nb")

    async def cancel(self, job_id: str) -> Job | None:
        return None


@dataclass
class Api:
    jobs: FakeJobs
    http: TestClient[Any, Any]
    mark: str
    api: JobsApi

    async def get(self, path: str, tenant: str | None = None, **headers: str) -> Any:
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        if tenant is not None:
            named |= {"x-policy-caller": self.mark, "x-policy-tenant": tenant}
        return await self.http.get(path, headers=named)


async def running(
    rules: ClassifyRules, token: Path | None = None, mark_now: Callable[[], str] | None = None
) -> Api:
    jobs = FakeJobs([job("one"), job("two", "evil"), job("three", "", JobState.QUEUED)])
    config = Config.model_validate({"server": {"admin_token_file": token}})
    mark = caller_mark(config)
    api = JobsApi(JobsApiDeps(cast(JobDesk, jobs), lambda: rules, mark_now or (lambda: mark)))
    deps = HttpDeps(
        lambda: b"",
        dict,
        dict,
        lambda: None,
        AdminToken(token) if token is not None else None,
        api,
    )
    client = TestClient(TestServer(build_http_app(deps)))
    await client.start_server()
    return Api(jobs, client, mark, api)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    found = await running(ClassifyRules())
    yield found
    await found.http.close()


async def test_a_tenant_sees_its_own_and_the_operator_all(api: Api) -> None:
    assert (await api.get("/policy/jobs/one", "acme")).status == 200
    assert (await api.get("/policy/jobs/two", "acme")).status == 404
    assert (await api.get("/policy/jobs/two")).status == 200
    assert (await api.get("/policy/jobs/none")).status == 404
    listed = await (await api.get("/policy/jobs", "acme")).json()
    assert [one["id"] for one in listed["jobs"]] == ["one"]
    listed = await (await api.get("/policy/jobs?limit=2")).json()
    assert len(listed["jobs"]) == 2


async def test_strangers_find_theirs_by_id_only(api: Api) -> None:
    assert (await api.get("/policy/jobs/three", "")).status == 200
    assert (await api.get("/policy/jobs/one", "")).status == 404
    assert (await api.get("/policy/jobs", "")).status == 403


async def test_whoever_knows_the_key_sees_what_it_has_brought() -> None:
    found = await running(ClassifyRules(tenant=TenantSource()))
    owner = "2bb80d537b1da3e3"  # sha256 of "secret"
    found.jobs.jobs = [job("mine", owner)]
    answer = await found.get("/policy/jobs/mine", "", authorization="Bearer secret")
    assert answer.status == 200
    assert (await found.get("/policy/jobs/mine", "", x_api_key="secret")).status == 200
    assert (await found.get("/policy/jobs/mine", "", x_api_key="other")).status == 404
    assert (await found.get("/policy/jobs", "", x_api_key="secret")).status == 200
    await found.http.close()


async def test_a_tenant_whose_name_is_no_text_finds_its_own(api: Api) -> None:
    """The gate reads such bytes as U+FFFD."""
    api.jobs.jobs.append(job("odd", "caf\ufffd"))
    for path, found in (("/odd", b"200"), ("/one", b"404"), ("", b"200")):
        raw = f"GET /policy/jobs{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        raw += f"x-policy-caller: {api.mark}\r\n"
        reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
        writer.write(raw.encode() + b"x-policy-tenant: caf\xe9\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.split()[1] == found
        assert (b'"odd"' in answer) == (found == b"200")


async def test_tenants_that_are_not_listed_share_no_jobs() -> None:
    found = await running(ClassifyRules(known_tenants=frozenset({"acme"})))
    bobs = replace(job("bobs"), tenant="(unknown)", owner="bob", path="/v1?key=AIza")
    older = replace(job("older"), tenant="(unknown)", owner="(unknown)")
    found.jobs.jobs = [bobs, older]
    found.jobs.answers["bobs"] = Answer(200, (), b"bob's private answer")
    assert (await found.get("/policy/jobs/bobs/response", "bob")).status == 200
    for other in ("mallory", "(unknown)", "acme", ""):
        for path in ("/policy/jobs/bobs", "/policy/jobs/bobs/response", "/policy/jobs/older"):
            assert (await found.get(path, other)).status == 404
        listed = await found.get("/policy/jobs", other)
        assert (await listed.json()).get("jobs", []) == []
    shown = await (await found.get("/policy/jobs/bobs")).json()
    assert (shown["tenant"], shown["path"]) == ("bob", "/v1")
    await found.http.close()


async def test_with_a_token_only_the_gateway_and_the_operator_get_in(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    found = await running(ClassifyRules(), file)
    assert (await found.get("/policy/jobs/one")).status == 401
    assert (await found.get("/policy/jobs/one", x_policy_caller="client")).status == 401
    assert (await found.get("/policy/jobs/one", "acme")).status == 200
    assert (await found.get("/metrics", "acme")).status == 401
    operator = await found.get("/policy/jobs/two", authorization=f"Bearer {TOKEN}")
    assert operator.status == 200
    forged = {"x_policy_caller": "client", "authorization": f"Bearer {TOKEN}"}
    assert (await found.get("/policy/jobs/two", **forged)).status == 403
    await found.http.close()


async def test_the_answer_is_replayed_as_it_came(api: Api) -> None:
    headers = (
        *(("content-type", "x/y"), ("set-cookie", "a"), ("set-cookie", "b"), ("etag", "1")),
        *(("keep-alive", "timeout=5"), ("content-length", "1")),  # of another connection
    )
    api.jobs.answers["one"] = Answer(418, headers, b"\0\xff")
    answer = await api.get("/policy/jobs/one/response", "acme")
    assert (answer.status, await answer.read()) == (418, b"\0\xff")
    assert answer.headers["content-type"] == "x/y"
    assert answer.headers.getall("set-cookie") == ["a", "b"]
    assert "cache-control" not in answer.headers
    assert "keep-alive" not in answer.headers
    assert answer.headers["content-length"] == "2"
    api.jobs.answers["one"] = Answer(200, (), b"plain")
    answer = await api.get("/policy/jobs/one/response", "acme")
    assert set(answer.headers) == {"Content-Length", "Date"}
    api.jobs.answers["one"] = Answer(204, (), b"")
    assert (await api.get("/policy/jobs/one/response", "acme")).status == 204


async def test_readers_who_take_nothing_fill_no_memory_and_stop_nobody(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 8 * 1024 * 1024
    piece = jobs_api.IN_MEMORY * jobs_api.PIECE
    monkeypatch.setattr(jobs_api, "READ_WAIT_S", 0.05)
    reading = api.api._reading = Memory(8 * piece)
    api.jobs.answers["one"] = Answer(200, (), bytes(size))
    api.jobs.answers["two"] = Answer(200, (), b"small")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(api.http.get("/policy/jobs/one/response"))
            assert await (await api.get("/policy/jobs/two/response")).read() == b"small"
        assert reading.used == 8 * piece  # an eighth of what they want
        await stack.enter_async_context(api.http.get("/policy/jobs/one/response"))  # goes over
        late = await api.get("/policy/jobs/two/response")
        assert (late.status, late.headers["retry-after"]) == (503, "2")
    await until(lambda: not reading.used)  # their connections are closed
    assert await (await api.get("/policy/jobs/one/response")).read() == bytes(size)
    assert reading.used == 0


async def test_an_answer_that_is_forgotten_in_the_middle_breaks_off(api: Api) -> None:
    api.jobs.answers["one"] = Answer(200, (), bytes(8 * 1024 * 1024))
    answer = await api.get("/policy/jobs/one/response")
    del api.jobs.answers["one"]
    with pytest.raises(ClientPayloadError):
        await answer.read()


async def test_who_takes_too_long_for_an_answer_is_cut_off(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PIECE_S", 0.05)
    api.jobs.answers["one"] = Answer(200, (), bytes(32 * 1024 * 1024))
    answer = await api.get("/policy/jobs/one/response")
    await until(lambda: not api.api._reading.used)
    with pytest.raises(ClientPayloadError):
        await answer.read()


async def test_the_head_of_an_answer_is_without_its_body(api: Api) -> None:
    api.jobs.answers["one"] = Answer(200, (("etag", "1"),), b"body")
    answer = await api.http.head("/policy/jobs/one/response")
    assert (answer.status, answer.headers["etag"]) == (200, "1")
    assert answer.headers["content-length"] == "4"
    assert await answer.read() == b""


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.QUEUED, 409),
        (JobState.DISPATCHED, 409),
        (JobState.FAILED, 502),
        (JobState.CANCELLED, 410),
        (JobState.EXPIRED, 410),
    ],
)
async def test_without_an_answer_it_says_why(api: Api, state: JobState, status: int) -> None:
    api.jobs.jobs = [job("x", state=state)]
    answer = await api.get("/policy/jobs/x/response", "acme")
    assert answer.status == status
    assert (await answer.json())["status"] == status


async def test_a_tenant_has_so_many_event_streams_and_no_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "MAX_OWN_STREAMS", 2)
    monkeypatch.setattr(jobs_api, "MAX_STREAMS", 3)
    monkeypatch.setattr(api.jobs, "events", endless)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(await api.get("/policy/jobs/one/events", "acme"))
        refused = await api.get("/policy/jobs/one/events", "acme")
        assert (refused.status, refused.headers["retry-after"]) == (429, "5")
        await stack.enter_async_context(await api.get("/policy/jobs/two/events", "evil"))
        assert (await api.get("/policy/jobs/two/events", "evil")).status == 429  # all are taken
    await until(lambda: not api.api._readers)
    async with await api.get("/policy/jobs/one/events", "acme") as answer:
        assert answer.status == 200


async def test_the_head_of_an_event_stream_is_no_stream(api: Api) -> None:
    reader, writer = await asyncio.open_connection(api.http.host, api.http.port)
    ask = "HEAD /policy/jobs/one/events HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    writer.write(ask.encode())
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in head
    assert rest == b""


async def endless(_id: str, _after: int) -> AsyncIterator[JobEvent | None]:
    while True:
        yield None
        await asyncio.sleep(0.01)


async def test_events_are_on_one_line_each(api: Api) -> None:
    answer = await api.get("/policy/jobs/one/events", "acme")
    text = await answer.text()
    assert text.startswith("id: 1\nevent: queued\ndata: {")
    assert ": waiting\n\n" in text
    assert text.count("\n\n") == 3


async def test_what_has_ended_can_not_be_cancelled(api: Api) -> None:
    answer = await api.http.delete("/policy/jobs/one")
    assert answer.status == 409


async def test_a_disk_in_trouble_is_a_503(api: Api) -> None:
    api.jobs.down = True
    answer = await api.get("/policy/jobs/one", "acme")
    assert answer.status == 503
    assert "disk is full" in (await answer.json())["detail"]
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("query", ["limit=x", "limit=-1", "limit="])
async def test_a_limit_that_is_none(api: Api, query: str) -> None:
    assert (await api.get(f"/policy/jobs?{query}")).status == 400


async def test_a_long_list_is_made_between_decisions(api: Api) -> None:
    """A thousand lines take 20 ms; whoever asks again and again must not stop the loop for that."""
    api.jobs.jobs = [job(f"{number:032x}") for number in range(1000)]
    calls = [asyncio.create_task(api.get("/policy/jobs?limit=1000", "acme")) for _ in range(8)]
    line, made, most = jobs_api.job_document, 0, 0

    def counted(one: Job) -> dict[str, object]:
        nonlocal made
        made += 1
        return line(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_api, "job_document", counted)
        while not all(call.done() for call in calls):
            before = made
            await asyncio.sleep(0)
            most = max(most, made - before)
    assert made == 8 * 1000
    assert most <= jobs_api.AT_A_TIME
    for call in calls:
        assert len((await call.result().json())["jobs"]) == 1000


@dataclass
class Chatty(FakeJobs):
    """A job of which something is heard all the time."""

    async def events(self, job_id: str, after: int) -> AsyncIterator[JobEvent | None]:
        while True:
            yield JobEvent(1, JobState.QUEUED, 1.0)
            await asyncio.sleep(0)


@pytest.mark.parametrize("what", ["events", "response"])
async def test_a_client_that_leaves_is_no_error(
    api: Api, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.jobs.__class__ = Chatty
    api.jobs.answers["one"] = Answer(200, (), bytes(32 * 1024 * 1024))
    assert isinstance(api.http.server, TestServer)
    runner = web.AppRunner(api.http.server.app)  # as in production: whoever leaves cancels nothing
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(f"GET /policy/jobs/one/{what} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    await until(lambda: bool(api.api._streams or api.api._reading.used))
    writer.transport.abort()
    await until(lambda: not (api.api._streams or api.api._reading.used))
    await runner.cleanup()
    assert [record.getMessage() for record in caplog.records] == []


@dataclass
class Endless(FakeJobs):
    """A job of which nothing more is heard; or the disk fails while it is watched."""

    fails: bool = False

    async def events(self, job_id: str, after: int) -> AsyncIterator[JobEvent | None]:
        yield JobEvent(1, JobState.QUEUED, 1.0)
        if self.fails:
            raise JournalUnavailableError("journal.db: the disk reports an I/O error")
        await asyncio.Event().wait()


async def test_a_stop_ends_the_event_streams_with_what_was_told(api: Api) -> None:
    api.jobs.__class__ = Endless
    answer = await api.get("/policy/jobs/one/events", "acme")
    assert (await answer.content.readline()).startswith(b"id: 1")
    assert api.http.server is not None
    async with asyncio.timeout(30):
        await api.http.server.close()
    assert (await answer.text()).endswith("\n\n"), "a whole body: the client asks the next server"


async def test_a_disk_that_fails_under_an_event_stream_breaks_it_off() -> None:
    found = await running(ClassifyRules())
    found.jobs.__class__ = Endless
    found.jobs.fails = True  # type: ignore[attr-defined]
    assert found.http.server is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", found.http.server.port)
    writer.write(b"GET /policy/jobs/one/events HTTP/1.1\r\nhost: x\r\n\r\n")
    raw = b""
    with contextlib.suppress(ConnectionError):
        while got := await reader.read(65536):
            raw += got
    writer.close()
    assert raw.count(b"HTTP/1.1") == 1, "one status line"
    assert not raw.endswith(b"0\r\n\r\n"), "no whole body"
    await found.http.close()


@pytest.mark.parametrize("content", [None, "", "  short  "])
async def test_a_token_file_that_is_no_use_lets_nobody_in(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    config = Config.model_validate({"server": {"admin_token_file": file}})
    found = await running(ClassifyRules(), file, lambda: caller_mark(config))
    assert (await found.get("/policy/jobs/two", "evil")).status == 200
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    stripped = (content or "").strip().encode()
    forged = hmac.new(stripped, b"policy-server gateway", sha256).hexdigest()
    for mark in (forged, found.mark):
        headers = {"x-policy-caller": mark, "x-policy-tenant": "evil"}
        answer = await found.http.get("/policy/jobs/two", headers=headers)
        assert answer.status == 503
        assert "token" in await answer.text()
    assert (await found.get("/policy/jobs/two")).status == 503
    await found.http.close()


async def test_what_belonged_to_the_connection_is_not_replayed(api: Api) -> None:
    theirs = (
        *(("transfer-encoding", "chunked"), ("connection", "close"), ("content-length", "9999")),
        *(("keep-alive", "timeout=77"), ("x-own", "1"), ("x-own", "2")),
    )
    api.jobs.answers["one"] = Answer(200, theirs, b"body")
    answer = await api.get("/policy/jobs/one/response")
    assert await answer.read() == b"body"
    assert answer.headers["content-length"] == "4"
    assert answer.headers.getall("x-own") == ["1", "2"]
    assert not {"transfer-encoding", "connection", "keep-alive"} & {
        n.lower() for n in answer.headers
    }
