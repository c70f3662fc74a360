"""Reads the engines' own metrics pages, one task per page, beside everything else.

A page comes when it comes: a try takes at most TIMEOUT_S and MAX_PAGE_BYTES, tries of one page
never overlap, and whatever goes wrong is one outcome of a closed set, counted, while admission
goes on with the signals that it has. What a page said is forgotten after two windows of the limit
(core/limit/window.py), so an engine that stops to tell is an engine that never told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import aiohttp
from yarl import URL

from policy_server.core.outcome import ReportOutcome
from policy_server.core.samples import LoadReport
from policy_server.lasting import lasting
from policy_server.signals.engine_metrics import MAX_AGE_S, MAX_PAGE_BYTES, read_page
from policy_server.signals.report import figure
from policy_server.signals.trust import Trust

TIMEOUT_S = 2.0  # half of what a report lives; a loaded engine takes some 100 ms for its page
MIN_PAUSE_S = 0.05  # between two tries, even where each takes longer than the interval
HEADERS = {"accept": "text/plain;version=0.0.4, */*;q=0.1", "accept-encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Page:
    """One page to read, every `interval_s` seconds, `offset_s` after the others.

    `ca_file`: who signed its certificate (https), None = somebody whom the system trusts.
    """

    pool: str
    url: str
    interval_s: float = 1.0
    offset_s: float = 0.0
    ca_file: str | None = None

    @property
    def source(self) -> str:
        """The URL without user and password."""
        return str(URL(self.url).with_user(None))


@dataclass(slots=True)
class LastTry:
    """What became of the last try; `at` on the event loop's clock."""

    outcome: ReportOutcome
    at: float


class ReportSink(Protocol):
    """Who takes the reports (the driver); it counts those it gets."""

    def load_report(self, pool: str, source: str, report: LoadReport) -> None:
        """An engine of `pool` says how it is."""
        ...


OnFailure = Callable[[Page, ReportOutcome], None]


class Scraper:
    """The tasks that read the pages. All methods must be called on the event loop."""

    def __init__(
        self,
        sink: ReportSink,
        count: Callable[[str, ReportOutcome], None],
        on_change: OnFailure = lambda _page, _outcome: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`count` gets the tries that brought no report, `on_change` the first of a kind."""
        self._sink = sink
        self._count = count
        self._on_change = on_change
        self._wall_clock = wall_clock
        self._trust = Trust()
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[Page, asyncio.Task[None]] = {}
        self._last: dict[Page, LastTry] = {}

    def use(self, pages: Iterable[Page]) -> None:
        """Read these pages from now on, and no others."""
        wanted = dict.fromkeys(pages)
        for page in [page for page in self._tasks if page not in wanted]:
            self._tasks.pop(page).cancel()
            self._last.pop(page, None)
        for page in wanted:
            if page not in self._tasks:
                work = partial(self._follow, page)
                self._tasks[page] = asyncio.create_task(lasting(f"reading {page.source}", work))

    async def stop(self) -> None:
        """End all tasks and close the connections."""
        tasks = list(self._tasks.values())
        self.use(())
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def last_tries(self, pool: str) -> list[tuple[str, LastTry | None]]:
        """(source, last try) of each page of a pool."""
        return [(page.source, self._last.get(page)) for page in self._tasks if page.pool == pool]

    async def _follow(self, page: Page) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(page.offset_s)
        while True:
            began = loop.time()
            self._took(page, await self._try(page), loop.time())
            await asyncio.sleep(max(MIN_PAUSE_S, page.interval_s - (loop.time() - began)))

    def _took(self, page: Page, found: LoadReport | ReportOutcome, now: float) -> None:
        if isinstance(found, LoadReport):
            outcome = _outcome_of(found)
            self._sink.load_report(page.pool, page.source, found)
        else:
            outcome = found
            self._count(page.pool, outcome)
        last = self._last.get(page)
        if outcome is not (last.outcome if last is not None else ReportOutcome.USED):
            self._on_change(page, outcome)
        self._last[page] = LastTry(outcome, now)

    async def _try(self, page: Page) -> LoadReport | ReportOutcome:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._read(page)
        except TimeoutError:
            return ReportOutcome.TIMEOUT
        except Exception:  # whatever a strange server makes the client raise must not end the task
            return ReportOutcome.UNREACHABLE

    async def _read(self, page: Page) -> LoadReport | ReportOutcome:
        async with self._http().get(
            page.url, headers=HEADERS, allow_redirects=False, ssl=self._trust.of(page.ca_file)
        ) as answer:
            if answer.status != 200:
                return ReportOutcome.UNREACHABLE
            if (figure(answer.headers.get("age", "0")) or 0.0) > MAX_AGE_S:
                return ReportOutcome.STALE  # a cache answers
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_PAGE_BYTES:
                    answer.close()
                    return ReportOutcome.TOO_LARGE
        return read_page(bytes(body), self._wall_clock())

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,  # a small answer must not unfold into a large one
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


def _outcome_of(report: LoadReport) -> ReportOutcome:
    if not report.tells_load:
        return ReportOutcome.INVALID
    return ReportOutcome.STALE if report.age_s >= MAX_AGE_S else ReportOutcome.USED


def spread(
    pool: str, urls: Iterable[str], interval_s: float, ca_file: str | None = None
) -> list[Page]:
    """The pages of a pool's replicas, their tries spread over the interval."""
    listed = list(dict.fromkeys(urls))
    return [
        Page(pool, url, interval_s, interval_s * index / len(listed), ca_file)
        for index, url in enumerate(listed)
    ]
