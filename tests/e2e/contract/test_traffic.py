"""Bodies, protocols and long answers pass unharmed, at once and after a wait."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from tests.support.live import CHAT, P0, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
JSON = {"content-type": "application/json", **P0}
SIZES = {"0 B": 0, "900 KB": 900_000, "3 MB": 3_000_000, "20 MB": 20_000_000}


def body_of(size: int) -> bytes:
    """A JSON document of about that size; nothing for 0."""
    return json.dumps({"model": "m", "pad": "x" * size}).encode() if size else b""


def client(version: str) -> httpx2.AsyncClient:
    """A client that speaks this version and no other."""
    http2 = version == "http2"
    return httpx2.AsyncClient(http1=not http2, http2=http2, timeout=60)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_a_body_arrives_whole(live: Live, version: str, size: int) -> None:
    body = body_of(size)
    async with client(version) as http:
        answer = await http.post(live.url_of(CHAT), content=body, headers=JSON)
    assert answer.status_code == 200
    assert answer.json()["bytes"] == len(body)
    assert answer.headers["x-policy-class"] == "P0"


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_a_body_arrives_whole_after_a_wait(live: Live, version: str) -> None:
    first = await live.busy()
    body = body_of(SIZES["3 MB"])
    async with client(version) as http:
        post = http.post(live.url_of(CHAT), content=body, headers=JSON)
        held = asyncio.create_task(post)
        await live.until(waiting=1, inflight=1)
        live.echo.finish.set()
        answer = await held
    assert answer.json()["bytes"] == len(body)
    await first


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_a_streamed_answer_comes_as_it_is_made(live: Live, version: str) -> None:
    async with (
        client(version) as http,
        http.stream("POST", live.url_of("/half"), headers=P0) as answer,
    ):
        assert answer.headers["x-policy-class"] == "P0"
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"data: {}\n\n"
        await live.until(waiting=0, inflight=1)
        live.echo.finish.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert rest == b"data: {}\n\n" * 2
    await live.until(inflight=0)


async def test_a_websocket_takes_a_seat_until_it_closes(live: Live) -> None:
    async with live.client.ws_connect(live.url_of("/ws"), headers=P0) as socket:
        await socket.send_str("hello")
        assert (await socket.receive()).data == "hello"
        await live.until(waiting=0, inflight=1)
        held = live.start_post()
        await live.until(waiting=1)
    assert (await held).status == 200


@pytest.mark.parametrize("name", [b"x-request-id", b"x-request-priority", b"referer"])
async def test_bytes_that_are_no_text_in_a_header_leave_no_slot_taken(
    live: Live, name: bytes
) -> None:
    address = live.envoys["near"].url.removeprefix("http://")
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n".encode()
    writer.write(head + name + b": \xff\xfe\x80(\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200 ")
    await live.until(waiting=0, inflight=0)
