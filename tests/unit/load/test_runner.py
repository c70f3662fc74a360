"""The generator against the real emulator, and against servers that misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from rich.console import Console

from policy_server.backend.params import BackendParams, EngineParams
from policy_server.backend.server import serving
from policy_server.load.params import LoadParams
from policy_server.load.report import render
from policy_server.load.runner import Progress, run_load

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
EMULATOR = BackendParams(engine=EngineParams(step_ms=1, seq_ms=0))
GOOD_REFUSAL = {"retry-after": "1", "retry-after-ms": "20", "x-policy-reason": "room_full"}


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["", "/v1/completions", "/v1/messages", "/v1/embeddings"])
async def test_every_request_to_the_emulator_is_served(path: str, stream: bool) -> None:
    async with serving(EMULATOR) as backend:
        params = LoadParams(
            backend.url + path, rate=60, seconds=0.5, tokens=5, sigma=0.5, stream=stream
        )
        report = await run_load(params)
        counted = backend.handlers.metrics.generation_tokens_total
    total = report.overall.total
    assert total.sent > 0
    assert total.ends["served"] == total.sent == total.attempts
    streams = stream and path != "/v1/embeddings"
    assert total.ttft_s.count == (total.sent if streams else 0)
    if total.ttft_s.p50 is not None and total.e2e_s.p50 is not None:
        assert 0 < total.ttft_s.p50 <= total.e2e_s.p50
    assert sum(second.tokens for second in report.timeline) == counted
    assert report.errors == {}


async def test_classes_and_tenants_travel_as_headers_and_come_back_in_the_report() -> None:
    seen: set[tuple[str, str, str]] = set()

    async def handle(request: web.Request) -> web.Response:
        headers = request.headers
        priority, tenant = headers["x-request-priority"], headers["x-tenant-id"]
        seen.add((priority, tenant, headers["x-stainless-retry-count"]))
        return web.json_response({}, headers={"x-queue-wait-ms": "12"})

    async with server(handle) as url:
        report = await run_load(
            LoadParams(url, 100, 0.5, mix={"0": 1, "2": 1}, tenants={"a": 1, "b": 1})
        )
    assert seen == {(p, t, "0") for p in "02" for t in "ab"}
    assert set(report.overall.classes) == {"P0", "P2"}
    assert set(report.tenants) == {"a", "b"}
    assert report.overall.total.queue_wait_ms.p50 == 12


async def test_latency_counts_from_the_scheduled_moment() -> None:
    """Blocking the loop that both share delays the sending, and that is in the latency."""
    blocked = False

    async def handle(_request: web.Request) -> web.Response:
        nonlocal blocked
        if not blocked:
            blocked = True
            time.sleep(0.3)  # noqa: ASYNC251 - blocking is the point
        return web.json_response({})

    async with server(handle) as url:
        report = await run_load(LoadParams(url, 100, 0.5))
    assert report.late_s > 0.1
    assert report.overall.total.e2e_s.p90 is not None
    assert report.overall.total.e2e_s.p90 > 0.1


async def test_with_retry_a_shed_client_comes_back_after_retry_after() -> None:
    counts: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        counts.append(request.headers["x-stainless-retry-count"])
        if counts[-1] != "2":
            return web.json_response({}, status=429, headers=GOOD_REFUSAL)
        return web.json_response({})

    async with server(handle) as url:
        report = await run_load(LoadParams(url, 40, 0.5, retry=True))
    total = report.overall.total
    assert total.ends["served"] == total.sent
    assert total.attempts == 3 * total.sent
    assert report.refused_attempts == 2 * total.sent
    assert report.malformed == 0
    assert set(counts) == {"0", "1", "2"}


async def test_without_retry_a_refusal_is_final_and_checked() -> None:
    async def handle(_request: web.Request) -> web.Response:
        bad = GOOD_REFUSAL | {"retry-after": "2"}
        return web.json_response({}, status=429, headers=bad)

    async with server(handle) as url:
        report = await run_load(LoadParams(url, 40, 0.5, mix={"1": 1}))
    total = report.overall.total
    assert total.ends["shed_429"] == total.sent == report.malformed
    assert report.refusals == {"P1": {"429 room_full": total.sent}}
    assert "ceil" in report.malformed_examples[0]


async def _cut(request: web.Request) -> web.StreamResponse:
    response = await _start(request)
    assert request.transport is not None
    request.transport.abort()
    return response


async def _no_done(request: web.Request) -> web.StreamResponse:
    response = await _start(request)
    await response.write_eof()
    return response


async def _error_chunk(request: web.Request) -> web.StreamResponse:
    response = await _start(request)
    await response.write(b'data: {"error":{"message":"broken"}}\n\ndata: [DONE]\n\n')
    await response.write_eof()
    return response


async def _start(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    return response


@pytest.mark.parametrize("handler", [_cut, _no_done, _error_chunk])
async def test_a_stream_that_does_not_end_well_is_incomplete_not_served(handler: Handler) -> None:
    async with server(handler) as url:
        report = await run_load(LoadParams(url, 40, 0.5, stream=True))
    total = report.overall.total
    assert total.ends["incomplete"] == total.sent > 0
    assert report.overall.goodput_rps == 0
    assert sum(report.errors.values()) == total.sent


async def test_what_is_under_way_after_the_drain_is_unfinished() -> None:
    async def handle(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with server(handle) as url:
        report = await run_load(LoadParams(url, 40, 0.3, drain_s=0.1))
    total = report.overall.total
    assert total.ends["unfinished"] == total.sent > 0


async def test_nobody_there_is_an_error_per_request_not_an_exception() -> None:
    report = await run_load(LoadParams("http://127.0.0.1:9", 40, 0.3))
    total = report.overall.total
    assert total.ends["error"] == total.sent > 0
    assert len(report.errors) == 1


async def test_a_server_error_is_counted_as_one() -> None:
    async def handle(_request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with server(handle) as url:
        report = await run_load(LoadParams(url, 40, 0.3))
    assert report.overall.total.ends["http_5xx"] == report.overall.total.sent
    assert report.errors == {"HTTP 500": report.overall.total.sent}


async def test_the_report_is_json_and_tables_and_shows_no_header_value() -> None:
    looks: list[Progress] = []
    async with serving(EMULATOR) as backend:
        params = LoadParams(
            backend.url,
            rate=20,
            seconds=1.3,
            mix={"0": 1, "1": 1},
            headers={"authorization": "Bearer secret"},
        )
        report = await run_load(params, looks.append)
    text = json.dumps(report.as_json())
    assert "secret" not in text
    assert json.loads(text)["overall"]["classes"]["P0"]["ends"]["served"] > 0
    assert looks
    console = Console(width=200, record=True, file=None, quiet=True)
    console.print(render(report))
