"""Reading pages from engines that behave, that break, hang, flood and lie."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from policy_server.core.outcome import ReportOutcome
from policy_server.core.samples import LoadReport
from policy_server.signals import scrape
from policy_server.signals.engine_metrics import MAX_PAGE_BYTES
from policy_server.signals.scrape import Page, Scraper, spread
from tests.support.envoy_process import free_ports

PAGE = b"vllm:num_requests_waiting 3\n"
Handler = Callable[[web.Request], object]


@dataclass
class Desk:
    """Takes what a scraper finds."""

    reports: list[tuple[str, str, LoadReport]] = field(default_factory=list)
    failures: list[tuple[str, ReportOutcome]] = field(default_factory=list)
    changes: list[ReportOutcome] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def load_report(self, pool: str, source: str, report: LoadReport) -> None:
        self.reports.append((pool, source, report))
        self.changed.set()

    def count(self, pool: str, outcome: ReportOutcome) -> None:
        self.failures.append((pool, outcome))
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def engine(handler: Handler) -> AsyncIterator[str]:
    """An engine whose /metrics does as told; its URL."""
    app = web.Application()
    app.router.add_get("/metrics", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def scraping(*urls: str, interval_s: float = 0.1) -> AsyncIterator[tuple[Desk, Scraper]]:
    desk = Desk()
    scraper = Scraper(desk, desk.count, lambda _page, outcome: desk.changes.append(outcome))
    scraper.use(spread("chat", urls, interval_s))
    try:
        yield desk, scraper
    finally:
        await scraper.stop()


async def good(_request: web.Request) -> web.Response:
    return web.Response(body=PAGE)


async def hang(_request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"#")
        await asyncio.sleep(0.01)


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(PAGE * 1000)


async def bomb(_request: web.Request) -> web.Response:
    body = gzip.compress(PAGE * (20 * MAX_PAGE_BYTES // len(PAGE)))
    return web.Response(body=body, headers={"content-encoding": "gzip"})


async def move(_request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"location": "/metrics"})


async def cached(_request: web.Request) -> web.Response:
    return web.Response(body=PAGE, headers={"age": "300"})


async def broken(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(PAGE)
    assert request.transport is not None
    request.transport.close()
    return response


async def unavailable(_request: web.Request) -> web.Response:
    return web.Response(status=503, body=PAGE)


async def test_a_page_is_read_again_and_again() -> None:
    async with engine(good) as url, scraping(url) as (desk, scraper):
        await desk.until(lambda: len(desk.reports) >= 3)
        assert desk.reports[0] == ("chat", url, LoadReport(waiting=3, scraped=True))
        assert not desk.failures
        assert not desk.changes
        ((source, last),) = scraper.last_tries("chat")
        assert source == url
        assert last is not None
        assert last.outcome is ReportOutcome.USED
        assert scraper.last_tries("other") == []


@pytest.mark.parametrize(
    ("handler", "outcome"),
    [
        (hang, ReportOutcome.TIMEOUT),
        (drip, ReportOutcome.TIMEOUT),
        (flood, ReportOutcome.TOO_LARGE),
        (move, ReportOutcome.UNREACHABLE),
        (unavailable, ReportOutcome.UNREACHABLE),
        (broken, ReportOutcome.UNREACHABLE),
        (cached, ReportOutcome.STALE),
    ],
)
async def test_what_goes_wrong_is_counted_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, outcome: ReportOutcome
) -> None:
    if outcome is ReportOutcome.TIMEOUT:
        monkeypatch.setattr(scrape, "TIMEOUT_S", 0.2)
    async with engine(handler) as url, scraping(url) as (desk, _):
        await desk.until(lambda: len(desk.failures) >= 2)
        assert desk.failures[:2] == [("chat", outcome)] * 2
        assert desk.changes == [outcome]  # said once, not with every try
        assert not desk.reports


async def test_a_small_answer_does_not_unfold_into_a_large_one() -> None:
    async with engine(bomb) as url, scraping(url) as (desk, _):
        await desk.until(lambda: desk.reports)
        assert not desk.reports[0][2].tells_load


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/metrics", "http://no.such.host.invalid/m"])
async def test_nobody_there(url: str) -> None:
    async with scraping(url) as (desk, _):
        await desk.until(lambda: desk.failures)
        assert desk.failures[0][1] in (ReportOutcome.UNREACHABLE, ReportOutcome.TIMEOUT)


async def test_a_replica_that_hangs_delays_no_other() -> None:
    async with engine(hang) as slow, engine(good) as url, scraping(slow, url) as (desk, _):
        await desk.until(lambda: len(desk.reports) >= 5)
        assert {source for _, source, _ in desk.reports} == {url}


async def test_an_engine_that_comes_back_is_heard_again() -> None:
    turns = itertools.count()

    async def flaky(request: web.Request) -> web.Response:
        return await (unavailable if next(turns) < 3 else good)(request)

    async with engine(flaky) as url, scraping(url) as (desk, _):
        await desk.until(lambda: desk.reports)
        assert len(desk.failures) == 3
        assert desk.changes == [ReportOutcome.UNREACHABLE, ReportOutcome.USED]


async def test_a_reload_ends_what_is_not_asked_for_any_more() -> None:
    async with engine(good) as one, engine(good) as two, scraping(one) as (desk, scraper):
        await desk.until(lambda: desk.reports)
        scraper.use(spread("chat", [two], 0.1))
        desk.reports.clear()
        await desk.until(lambda: len(desk.reports) >= 3)
        assert {source for _, source, _ in desk.reports} == {two}
        assert [source for source, _ in scraper.last_tries("chat")] == [two]


def test_replicas_are_read_one_after_the_other_within_the_interval() -> None:
    pages = spread("chat", ["http://a/", "http://b/", "http://a/"], 1.0)
    assert [(page.url, page.offset_s) for page in pages] == [("http://a/", 0.0), ("http://b/", 0.5)]


def test_a_password_in_the_url_is_never_shown() -> None:
    page = Page("chat", "http://me:secret@host:8000/metrics")
    assert page.source == "http://host:8000/metrics"


async def test_a_mistake_of_ours_ends_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy_server.lasting.FIRST_PAUSE_S", 0.001)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with engine(good) as url, scraping(url) as (desk, _):
        await desk.until(lambda: desk.reports)
        take, failed = desk.load_report, list[bool]()

        def once_broken(*report: Any) -> None:
            if not failed:
                failed.append(True)
                raise RuntimeError("a mistake")
            take(*report)

        desk.load_report = once_broken  # type: ignore[method-assign]
        await desk.until(lambda: failed)
        before = len(desk.reports)
        await desk.until(lambda: len(desk.reports) > before)
