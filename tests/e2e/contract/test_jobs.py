"""Jobs: accepted with 202, run through Envoy, answered byte for byte; the same in every wiring."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import CHAT, P0, Answer, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
ASYNC = {"prefer": "respond-async"}
ACME = {"x-tenant-id": "acme"}
ENDED = {"done", "failed", "cancelled", "expired"}


async def api(live: Live, path: str, method: str = "GET", **headers: str) -> Answer:
    """The HTTP API as a client of the tenant acme reaches it, through Envoy."""
    url = live.url_of(path)
    async with live.client.request(method, url, headers={**ACME, **headers}) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


async def submit(live: Live, path: str = CHAT, **more: Any) -> str:
    """A job of acme; its place."""
    headers = {**ASYNC, **ACME, **more.pop("headers", {})}
    answer = await live.post(path, headers=headers, **more)
    assert answer.status == 202, answer.body
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.headers["location"] == answer.document["location"]
    return str(answer.headers["location"])


async def ended(live: Live, where: str) -> dict[str, Any]:
    """The job's record, once it has ended."""
    async with asyncio.timeout(30):
        while True:
            answer = await api(live, where)
            assert answer.status == 200, answer.body
            if answer.document["status"] in ENDED:
                return dict(answer.document)
            await asyncio.sleep(0.02)


async def test_a_job_runs_and_its_answer_is_kept_as_it_came(live: Live) -> None:
    body = {"model": "m", "text": "ä" * 100}
    where = await submit(live, json=body, headers={"authorization": "Bearer secret", "x-own": "1"})
    job = await ended(live, where)
    assert (job["status"], job["response_status"], job["attempts"]) == ("done", 200, 1)
    answer = await api(live, f"{where}/response")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["server"] == "echo"
    seen = {name.lower(): value for name, value in answer.document["headers"].items()}
    assert answer.document["bytes"] == len(json.dumps(body).encode())
    assert (seen["authorization"], seen["x-own"], seen["x-tenant-id"]) == (
        "Bearer secret",
        "1",
        "acme",
    )
    assert not [name for name in seen if name.startswith(("x-policy", "prefer"))]
    await live.until(waiting=0, inflight=0)


async def test_a_job_waits_behind_those_on_the_line(live: Live) -> None:
    first = await live.busy()
    where = await submit(live, headers={"x-request-priority": "0"})
    held = live.start_post(headers={"x-who": "held"})
    await live.until(waiting=1, inflight=1)
    assert (await api(live, where)).document["status"] == "queued"
    assert (await api(live, f"{where}/response")).status == 409
    before = len(live.echo.requests)
    live.echo.finish.set()
    assert {(await first).status, (await held).status} == {200}
    assert (await ended(live, where))["status"] == "done"
    assert [r.headers.get("x-who") for r in live.echo.requests[before:]] == ["held", None]


async def test_wait_first_then_become_a_job(live: Live) -> None:
    direct = await live.post(headers={"prefer": "respond-async, wait=5"}, json={})
    assert direct.status == 200
    first = await live.busy()
    answer = await live.post(headers={"prefer": "wait=1, respond-async", **ACME}, data=b"later")
    assert answer.status == 202
    live.echo.finish.set()
    assert (await first).status == 200
    await ended(live, answer.headers["location"])
    stored = await api(live, answer.headers["location"] + "/response")
    assert stored.document["bytes"] == 5


@pytest.mark.parametrize("size", [0, 1, 70_000, 12_000_000])
async def test_bodies_of_any_size_arrive_whole(live: Live, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    where = await submit(live, "/mirror", data=body)
    assert (await ended(live, where))["status"] == "done"
    answer = await api(live, f"{where}/response")
    assert answer.body == body


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("/v1/chat?", []),
        ("/v1/chat", [f"x-{number}: 1" for number in range(993)]),
        ("/v1/chat", ["x-large: " + "x" * 61_200]),
        ("/v1/chat", ["x-odd: " + "\xff" * 30_000]),
    ],
    ids=["a lone question mark", "many headers", "large headers", "no text"],
)
async def test_what_is_accepted_can_be_sent(live: Live, target: str, more: list[str]) -> None:
    """A job goes through two listeners; it is lost if the second one takes less than the first."""
    host, _, port = live.url_of("").removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"POST {target} HTTP/1.1", "host: x", "content-length: 0", "prefer: respond-async"]
    lines += ["x-tenant-id: acme", "x-request-priority: 0", *more, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1"))
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    assert head.startswith("HTTP/1.1 202"), head
    where = head.partition("location: ")[2].partition("\r\n")[0]
    assert (await ended(live, where))["status"] == "done"


async def test_what_can_not_be_a_job_is_told_so(live: Live) -> None:
    async def chunks() -> Any:
        yield b"no length"

    answer = await live.post(headers=ASYNC, data=chunks())
    assert answer.status == 411
    answer = await live.post(headers={**ASYNC, "x-webhook-url": "http://169.254.169.254/"})
    assert answer.status == 400
    await live.until(waiting=0, inflight=0)


async def test_a_tenant_has_so_many_jobs_open_and_no_more(live: Live) -> None:
    greedy = {**ASYNC, "x-tenant-id": "greedy"}
    first = await live.busy()
    said = [await live.post(headers=greedy, data=b"x") for _ in range(6)]
    assert [answer.status for answer in said] == [202] * 5 + [429]
    refused = said[-1]
    assert refused.headers["x-policy-reason"] == "tenant_limit"
    assert 1 <= int(refused.headers["retry-after"]) <= 55
    assert refused.document["error"]["code"] == "rate_limit_exceeded"
    live.echo.finish.set()
    assert (await first).status == 200
    for answer in said[:-1]:
        where = answer.headers["location"]
        async with live.client.get(f"http://127.0.0.1:{live.where['http']}{where}/events") as told:
            assert "event: done" in await told.text()
    assert (await live.post(headers=greedy, data=b"x")).status == 202


async def test_a_key_names_one_job(live: Live) -> None:
    key = {"idempotency-key": f"k-{live.wiring}"}
    first, again = [await submit(live, data=b"same", headers=key) for _ in range(2)]
    assert first == again
    answer = await live.post(headers={**ASYNC, **ACME, **key}, data=b"other")
    assert answer.status == 422
    answer = await live.post(headers={**ASYNC, "x-tenant-id": "b", **key}, data=b"other")
    assert answer.status == 202


async def test_a_job_is_its_tenants_own(live: Live) -> None:
    where = await submit(live)
    other = await api(live, where, **{"x-tenant-id": "evil", "x-policy-tenant": "acme"})
    assert other.status == 404
    assert (await api(live, f"{where}/response", **{"x-tenant-id": "evil"})).status == 404
    assert (await api(live, where, "DELETE", **{"x-tenant-id": "evil"})).status == 404
    mine = (await api(live, "/policy/jobs")).document["jobs"]
    assert where in [job["links"]["self"] for job in mine]
    theirs = (await api(live, "/policy/jobs", **{"x-tenant-id": "evil"})).document["jobs"]
    assert where not in [job["links"]["self"] for job in theirs]
    async with live.client.get(f"http://127.0.0.1:{live.where['http']}{where}") as answer:
        assert answer.status == 200  # the operator
    await ended(live, where)


async def test_a_waiting_job_is_cancelled(live: Live) -> None:
    first = await live.busy()
    where = await submit(live)
    assert (await api(live, where, "DELETE")).document["status"] == "cancelled"
    assert (await api(live, where, "DELETE")).status == 409
    assert (await api(live, f"{where}/response")).status == 410
    before = len(live.echo.requests)
    live.echo.finish.set()
    assert (await first).status == 200
    await live.until(waiting=0, inflight=0)
    assert len(live.echo.requests) == before


async def test_a_job_on_its_way_is_cancelled(live: Live) -> None:
    before = len(live.echo.requests)
    where = await submit(live, "/slow")
    async with asyncio.timeout(20):
        while len(live.echo.requests) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await api(live, where, "DELETE")).status == 200
    await live.until(waiting=0, inflight=0)
    assert (await ended(live, where))["status"] == "cancelled"


async def test_events_tell_the_whole_story_to_whoever_comes_late(live: Live) -> None:
    first = await live.busy()
    where = await submit(live)
    early = asyncio.create_task(api(live, f"{where}/events"))
    live.echo.finish.set()
    assert (await first).status == 200
    await ended(live, where)
    late = await api(live, f"{where}/events")
    assert late.headers["content-type"] == "text/event-stream"
    told = [line for line in late.body.decode().split("\n") if line.startswith("event:")]
    assert told == ["event: queued", "event: dispatched", "event: done"]
    assert [x for x in (await early).body.decode().split("\n") if x.startswith("event:")] == told
    rest = await api(live, f"{where}/events", **{"last-event-id": "2"})
    assert rest.body.decode().count("event:") == 1


async def test_a_crowd_of_event_streams_keeps_nobody_out(live: Live) -> None:
    first = await live.busy()
    where = await submit(live)
    host, _, port = live.url_of("").removeprefix("http://").partition(":")
    get = f"GET {where}/events HTTP/1.1\r\nhost: x\r\nx-tenant-id: acme\r\n\r\n".encode()

    async def reader() -> bytes:
        stream, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(get)
            status = await stream.readline()
            await stream.readuntil(b"event: done" if status.startswith(b"HTTP/1.1 200") else b"\n")
            return status
        finally:
            writer.close()

    def connections() -> int:
        """Of Envoy to the policy server, those among them that it can't accept yet."""
        to = f":{live.where['http']:04X}"
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return sum(line.split()[2].endswith(to) for line in lines)

    os.kill(live.policy.pid, signal.SIGSTOP)  # as busy as can be while they come
    crowd = [asyncio.create_task(reader()) for _ in range(400)]
    async with asyncio.timeout(20):
        while connections() < 300:  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.01)
    os.kill(live.policy.pid, signal.SIGCONT)
    answer = await api(live, where)
    assert answer.document["status"] == "queued"
    live.echo.finish.set()
    assert (await first).status == 200
    assert {await one for one in crowd} == {b"HTTP/1.1 200 OK\r\n"}


async def test_a_streamed_answer_is_kept_as_received(live: Live) -> None:
    where = await submit(live, "/stream")
    await ended(live, where)
    answer = await api(live, f"{where}/response")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.body == b"data: {}\n\n" * 3


async def test_a_model_server_in_trouble_is_asked_again(live: Live) -> None:
    where = await submit(live, "/flaky", data=b"x")
    job = await ended(live, where)
    assert (job["status"], job["response_status"], job["attempts"]) == ("done", 200, 3)


@pytest.mark.parametrize(
    ("path", "why"), [("/crash", "the model server broke off"), ("/chained", "again in 77.0 s")]
)
async def test_a_model_server_that_was_reached_is_not_asked_for_ever(
    live: Live, path: str, why: str
) -> None:
    where = await submit(live, path, data=b"x")
    async with live.client.get(live.url_of(f"{where}/events"), headers=ACME) as told:
        async for line in told.content:
            if b"; again in" in line:
                break
    assert why in line.decode()
    assert (await api(live, where, "DELETE")).status == 200
    await live.until(waiting=0, inflight=0)


async def test_whoever_says_that_he_is_a_job_gains_nothing(live: Live) -> None:
    forged = {"x-policy-job": "job-1-1 99999999999 00", "x-policy-uid": "job-1-1"}
    answer = await live.post(headers=forged)  # taken away by Envoy: an ordinary request
    assert answer.status == 200
    url = f"http://127.0.0.1:{live.where['jobs']}{CHAT}"
    async with live.client.post(url, headers={**P0, **forged}) as direct:
        assert direct.status == 403
    async with live.client.post(url, headers=P0) as direct:
        assert direct.status == 403
    await live.until(waiting=0, inflight=0)
