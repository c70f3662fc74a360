"""What Envoy reads of a request decides who governs it, however the request is written.

The pool goes by the model that the body names, on `/v1/`. Its one slot is taken, so whoever gets
an answer got around it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping

import pytest

from policy_server.telemetry import names
from tests.support.live import CHAT, P0, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
BODY = json.dumps({"model": "m", "stream": True, "max_tokens": 5}).encode()
NOW = {**P0, "prefer": "wait=0", "connection": "close"}
TYPES = (
    "application/json",
    "application/json; charset=utf-8",
    "Application/JSON;charset=UTF-8",
    "application/vnd.api+json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/octet-stream",
    "application/json, application/json",
    "application/grpc",
    "",
    None,
)
UNREADABLE = (
    b'{"temperature":NaN,"model":"m"}',
    b'{"model":"m","x":-Infinity}',
    b'{"model":"m","x":1e400}',
    b'{"model":"m","messages":[{"content":"\\ud83d"}]}',
    b'{"model":"m","messages":[{"content":"\xe9"}]}',
    b'{"model":"m","x":' + b"[" * 2000 + b"]" * 2000 + b"}",
    BODY.decode().encode("utf-16"),
    gzip.compress(BODY),
)
PATHS = (
    "/v1%2Fchat%2Fcompletions",
    "/v1%2fchat/completions",
    "/v1%5Cchat/completions",
    "//v1/chat/completions",
    "/./v1//chat/completions",
    "/x/../v1/chat/completions",
    "/x/%2e%2E/v1/chat/completions",
    "/x%2F..%2Fv1/chat/completions",
    "/%76%31/chat/completions",
    "/v%31/chat/completions",
    "/%7631%2F../v1/chat/completions",
)


async def raw(live: Live, path: str, headers: Mapping[str, str | None], body: bytes) -> bytes:
    """The answer to a POST as it is written here, which no client would send."""
    reader, writer = await asyncio.open_connection(*_address(live))
    writer.write(_head(path, headers, len(body)) + body)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def _address(live: Live) -> tuple[str, int]:
    host, _, port = live.envoys["near"].url.removeprefix("http://").partition(":")
    return host, int(port)


def _head(path: str, headers: Mapping[str, str | None], length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join((*lines, "\r\n")).encode()


async def all_refused(live: Live, requests: list[tuple[str, dict[str, str | None], bytes]]) -> None:
    """Each of them is told to wait, and none reaches the model server."""
    first = await live.busy("/v1/slow", json={"model": "m"})
    before = len(live.echo.requests)
    for path, headers, body in requests:
        answer = await raw(live, path, {**NOW, **headers}, body)
        told = b"x-policy-reason: predicted_wait" in answer
        assert told, (path, headers, body[:60], answer[:300])
    assert len(live.echo.requests) == before
    live.echo.finish.set()
    assert (await first).status == 200


async def test_no_type_hides_the_model(by_model: Live) -> None:
    await all_refused(by_model, [(CHAT, {"content-type": kind}, BODY) for kind in TYPES])


async def test_no_body_that_can_not_be_read_passes(by_model: Live) -> None:
    kind: dict[str, str | None] = {"content-type": "application/json"}
    before = await unread(by_model)
    await all_refused(by_model, [(CHAT, kind, body) for body in UNREADABLE])
    assert await unread(by_model) == before + len(UNREADABLE)


async def unread(live: Live) -> float:
    """The counter of bodies that could not be read."""
    async with live.client.get(f"http://127.0.0.1:{live.where['http']}/metrics") as page:
        lines = (await page.text()).splitlines()
    return float(next(x for x in lines if x.startswith(f"{names.UNREAD.name}{{")).split()[-1])


async def test_no_spelling_of_a_path_gets_around_it(by_model: Live) -> None:
    await all_refused(by_model, [(path, {}, BODY) for path in PATHS])


async def test_a_body_that_names_another_model_passes(by_model: Live) -> None:
    first = await by_model.busy("/v1/slow", json={"model": "m"})
    for body in (b'{"model":"x"}', b'{"stream":true}', b""):
        answer = await by_model.post(data=body, headers={"content-type": "text/plain"})
        assert (answer.status, answer.headers.get("x-policy-class")) == (200, None)
    by_model.echo.finish.set()
    await first


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/grpc", None])
async def test_who_stops_in_the_middle_of_a_body_takes_no_seat(
    by_model: Live, kind: str | None
) -> None:
    head = _head(CHAT, {**NOW, "content-type": kind}, len(BODY))
    stalled = [await asyncio.open_connection(*_address(by_model)) for _ in range(3)]
    for _, writer in stalled:
        writer.write(head + BODY[:1])
        await writer.drain()
    before = len(by_model.echo.requests)
    answer = await by_model.post(json={"model": "m"}, headers=NOW)
    assert answer.status == 200
    assert len(by_model.echo.requests) == before + 1
    for number, (reader, writer) in enumerate(stalled):  # they may go on, one after the other
        await by_model.until(waiting=0, inflight=0)
        writer.write(BODY[1:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await reader.read()
        writer.close()
        assert len(by_model.echo.requests) == before + 2 + number
