"""Requests full of garbage, as bytes on the wire: no crash, no slot lost, nobody let in."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.live import CHAT, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
SEED = 20261130
REQUESTS = 60
NAMES = (
    *("x-request-priority", "priority", "prefer", "x-queue-ticket", "x-tenant-id", "x-request-id"),
    *("x-stainless-retry-count", "x-stainless-read-timeout", "x-stainless-timeout"),
    *("grpc-timeout", "x-policy-uid", "x-policy-observe", "x-policy-class", "content-type"),
    *("authorization", "x-api-key", "idempotency-key", "x-webhook-url"),
)
WORDS = (
    *(b"0", b"-1", b"P0", b"99999999999999999999", b"1e309", b"nan", b"wait=", b"wait=1;" * 400),
    *(b"u=0", b"u=9", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"a" * 9000, b"", b" ", b"\t\t"),
    *(b"true", b"5S", b"application/grpc", b"../../etc", b"%00%0d%0a", b"a, b, c", b'"', b"{}"),
)


def garbage(rng: random.Random) -> bytes:
    """A header value: a nasty word, or any bytes that may stand on the line."""
    if rng.random() < 0.6:
        return rng.choice(WORDS)
    return bytes(
        rng.choice((9, *range(32, 127), *range(128, 256))) for _ in range(rng.randrange(80))
    )


BODIES = (b"", b"{}", b'{"model":5,"stream":"x","max_tokens":-1e400}', b"\xff" * 10)
FOR_M = (
    *(b'{"model":"m"}', b'\xef\xbb\xbf {"a":{},"model":"m"}\n', b'{"\\u006dodel":"m"}'),
    *(b'{"model":"x","model":"m"}', b'{"model":"m","seed":NaN}', b'{"model":"m"', b"\xff" * 10),
)
"""Bodies that a model server may take for one that names `m`."""


def spelled(rng: random.Random, path: str) -> str:
    """The same path to a model server, in another spelling."""
    found = "".join(
        f"%{ord(c):{rng.choice(('02x', '02X'))}}" if rng.random() < 0.2 else c for c in path
    )
    return found.replace("/", rng.choice(("/", "//", "/./", "/x/../", "%2F", "%2f")), 1)


def request(
    rng: random.Random,
    number: int,
    *fixed: bytes,
    path: str = CHAT,
    bodies: tuple[bytes, ...] = BODIES,
) -> bytes:
    """One HTTP/1.1 request that nobody should send."""
    lines = [f"POST {path}?{number} HTTP/1.1".encode(), b"host: x", b"connection: close"]
    chosen = rng.sample(NAMES, rng.randrange(1, 9))
    lines += [name.encode() + b": " + garbage(rng) for name in chosen]
    lines += [rng.choice(lines[3:])] * rng.randrange(2)  # the same header twice
    body = rng.choice(bodies)
    lines += [*fixed, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def status_of(live: Live, raw: bytes) -> int:
    """Send it as it is; the status of the answer, 0 when Envoy just closes."""
    host, _, port = live.envoys["near"].url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(raw)
        await writer.drain()
        line = (await reader.readline()).split(b" ")
        return int(line[1]) if len(line) > 1 else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def test_garbage_costs_nobody_a_slot(live: Live) -> None:
    rng = random.Random(SEED)
    for number in range(REQUESTS):
        raw = request(rng, number)
        assert await status_of(live, raw) in (0, 200, 400, 429, 431), (SEED, number, raw)
    await live.until(waiting=0, inflight=0)
    assert live.policy.returncode is None


async def test_garbage_lets_nobody_in(by_model: Live) -> None:
    """The one slot is taken and nobody waits: whatever else they say, they are refused. The pool
    goes by path and model, so whoever hides one of them would pass."""
    live, rng = by_model, random.Random(SEED + 1)
    first = await live.busy("/v1/slow", json={"model": "m"})
    before = len(live.echo.requests)
    for number in range(REQUESTS):
        raw = request(rng, number, b"prefer: wait=0", path=spelled(rng, CHAT), bodies=FOR_M)
        # Two `prefer` are one list; the first `wait` counts, so some wait, and leave unanswered.
        try:
            async with asyncio.timeout(0.5):
                status = await status_of(live, raw)
        except TimeoutError:
            continue
        assert status in (0, 200, 400, 429, 431), (SEED, number, raw)
    assert len(live.echo.requests) == before  # a 200 is a gRPC caller's refusal
    await live.until(waiting=0, inflight=1)
    live.echo.finish.set()
    assert (await first).status == 200
