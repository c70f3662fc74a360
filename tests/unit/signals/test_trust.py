"""Pages and probes over https, of engines whose certificate a private CA has signed."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509

from policy_server.core.outcome import ReportOutcome
from policy_server.core.samples import LoadReport
from policy_server.signals.readiness import Readiness, Source, Told
from policy_server.signals.scrape import Scraper, spread
from policy_server.signals.trust import Trust
from tests.support.certificates import write_tls
from tests.support.envoy_process import free_ports


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return write_tls(tmp_path, x509.DNSName("localhost"), local)


@contextlib.asynccontextmanager
async def engine(files: dict[str, Path]) -> AsyncIterator[str]:
    """The URL of an engine that is ready and has three requests waiting."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_waiting 3\n")

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield f"https://localhost:{port}/metrics"
    finally:
        await runner.cleanup()


class Page:
    """Takes what the scraper finds."""

    def __init__(self) -> None:
        self.first: asyncio.Future[LoadReport | ReportOutcome] = asyncio.Future()

    def load_report(self, _pool: str, _source: str, report: LoadReport) -> None:
        self.take(report)

    def take(self, found: LoadReport | ReportOutcome) -> None:
        if not self.first.done():
            self.first.set_result(found)


async def scraped(url: str, ca_file: str | None) -> LoadReport | ReportOutcome:
    page = Page()
    scraper = Scraper(page, lambda _pool, outcome: page.take(outcome))
    scraper.use(spread("chat", [url], 1.0, ca_file))
    try:
        async with asyncio.timeout(20):
            return await page.first
    finally:
        await scraper.stop()


async def probed(url: str, ca_file: str | None) -> Told:
    told: asyncio.Future[Told] = asyncio.Future()
    readiness = Readiness(lambda *_: None, lambda _, said: told.done() or told.set_result(said))
    readiness.use([Source("chat", probe=(url,), ca_file=ca_file)])
    try:
        async with asyncio.timeout(20):
            return await told
    finally:
        await readiness.stop()


async def test_a_private_ca_is_believed_where_it_is_named(files: dict[str, Path]) -> None:
    ca = str(files["ca"])
    async with engine(files) as url:
        assert await scraped(url, ca) == LoadReport(waiting=3.0, scraped=True)
        assert await probed(url, ca) == Told(1)


async def test_it_is_not_believed_elsewhere(files: dict[str, Path]) -> None:
    async with engine(files) as url:
        assert await scraped(url, None) is ReportOutcome.UNREACHABLE
        told = await probed(url, None)
        assert told.ready == 0
        assert "certificate" in told.failing


async def test_a_file_of_no_use_is_a_page_that_cannot_be_read(
    files: dict[str, Path], tmp_path: Path
) -> None:
    missing = str(tmp_path / "none.pem")
    async with engine(files) as url:
        assert await scraped(url, missing) is ReportOutcome.UNREACHABLE
        assert "none.pem" in (await probed(url, missing)).failing


def test_a_file_that_is_replaced_is_read_again(files: dict[str, Path], tmp_path: Path) -> None:
    trust, ca = Trust(), str(files["ca"])
    context = trust.of(ca)
    assert isinstance(context, ssl.SSLContext)
    assert trust.of(ca) is context
    newer = tmp_path / "newer"
    newer.mkdir()
    write_tls(newer, x509.DNSName("localhost"))["ca"].replace(ca)
    assert trust.of(ca) is not context
