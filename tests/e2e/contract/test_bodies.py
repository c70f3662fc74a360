"""Bodies around the bound of a job's: the right bytes or the right error, however they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.contract.test_jobs import ACME, ASYNC, api, ended
from tests.support.live import Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
BOUND = 16 * 1024 * 1024
CHUNK = 60_000
SIZES = [BOUND, BOUND + 1, 17_000_000]
WAYS = ["content-length", "chunked"]


def body_of(size: int) -> bytes:
    """Bytes of all kinds, none of which is where another is."""
    block = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(251))
    return (block * (size // len(block) + 1))[:size]


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


def sent(body: bytes, way: str) -> dict[str, Any]:
    return {"data": body if way == "content-length" else chunks(body)}


def same(found: bytes, body: bytes) -> bool:
    """Not `==` inside an assertion: pytest would print megabytes."""
    return hashlib.sha256(found).digest() == hashlib.sha256(body).digest()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
async def test_an_ordinary_request_is_not_bounded(live: Live, size: int, way: str) -> None:
    body = body_of(size)
    answer = await live.post("/mirror", **sent(body, way))
    assert answer.status == 200
    assert same(answer.body, body)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 17_000_000])
async def test_one_that_is_held_meanwhile_arrives_whole(live: Live, size: int, way: str) -> None:
    first = await live.busy()
    body = body_of(size)
    held = live.start_post("/mirror", **sent(body, way))
    await live.until(waiting=1, inflight=1)
    live.echo.finish.set()
    assert (await first).status == 200
    answer = await held
    assert answer.status == 200
    assert same(answer.body, body)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prefer", ["respond-async", "respond-async, wait=1"])
async def test_a_job_up_to_the_bound_arrives_whole_and_a_larger_one_is_told(
    live: Live, size: int, prefer: str
) -> None:
    first = await live.busy()
    body, headers = body_of(size), {**ACME, "prefer": prefer}
    accepted = await live.post("/mirror", headers=headers, data=body)
    live.echo.finish.set()
    assert (await first).status == 200
    if size > BOUND:
        assert accepted.status == 413
        assert str(BOUND) in accepted.document["error"]["message"]
        assert accepted.headers["x-should-retry"] == "false"
        await live.until(waiting=0, inflight=0)
        return
    assert accepted.status == 202
    where = accepted.headers["location"]
    assert (await ended(live, where))["status"] == "done"
    assert same((await api(live, f"{where}/response")).body, body)


@pytest.mark.parametrize("size", [1, *SIZES])
async def test_a_job_without_its_length_is_told_at_any_size(live: Live, size: int) -> None:
    answer = await live.post("/mirror", headers={**ACME, **ASYNC}, data=chunks(body_of(size)))
    assert answer.status == 411
    assert "content-length" in answer.document["error"]["message"]
    await live.until(waiting=0, inflight=0)
