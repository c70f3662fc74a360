"""Keeps the view fresh: every two seconds, less often while the server is gone."""

from __future__ import annotations

import asyncio

import aiohttp
from rich.console import Console
from rich.live import Live

from policy_server.top.source import Json, NoAnswerError, Snapshot, Source
from policy_server.top.view import view

POLL_S = 2.0
LONGEST_PAUSE_S = 30.0
HISTORY_EVERY = 5
"""Polls per reading of the history: one column of a chart is longer than that."""


async def run_top(url: str, token: str, console: Console, once: bool) -> None:
    """Show `url` until cancelled, or `once`. Raises NoAnswerError when it does not answer at all;
    a server that goes away later is shown as gone and asked for again."""
    async with aiohttp.ClientSession() as http:
        source = Source(http, url, token)
        first = Snapshot(await source.status(), await source.history())
        if once:
            console.print(view(first, printed=True))
            return
        with Live(view(first), console=console, screen=True, auto_refresh=False) as live:
            await _Watch(source, live, first).forever()


class _Watch:
    def __init__(self, source: Source, live: Live, first: Snapshot) -> None:
        self._source = source
        self._live = live
        self._last = first
        self._failures = 0
        self._polls = 0
        self._heard = self._now()

    async def forever(self) -> None:
        self._live.refresh()
        while True:
            await asyncio.sleep(self._pause())
            try:
                self._last = Snapshot(await self._source.status(), await self._history())
            except NoAnswerError as error:
                self._failures += 1
                self._show(self._gone(error))
                continue
            self._failures, self._heard = 0, self._now()
            self._show("")

    async def _history(self) -> Json:
        self._polls += 1
        if self._polls % HISTORY_EVERY and not self._failures:
            return self._last.history
        return await self._source.history()

    def _pause(self) -> float:
        return min(LONGEST_PAUSE_S, POLL_S * float(2 ** max(0, self._failures - 1)))

    def _gone(self, error: NoAnswerError) -> str:
        age, pause = self._now() - self._heard, self._pause()
        return f"{error}. This is {age:.0f} s old; next try in {pause:.0f} s."

    def _show(self, problem: str) -> None:
        self._live.update(view(self._last, problem), refresh=True)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
