"""Sends the workload on schedule and waits for its answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from policy_server.load import retry
from policy_server.load.attempt import Attempt, End, Target, send
from policy_server.load.params import LoadParams
from policy_server.load.results import LoadReport, build_report
from policy_server.load.sse import READ_BUFFER_BYTES
from policy_server.load.tally import Record, Tally
from policy_server.load.workload import Arrival, Bodies, arrivals
from policy_server.processes import raise_file_limit

PROGRESS_EVERY_S = 1.0
KEEPALIVE_S = 4.0
"""Below the 5 s after which uvicorn closes idle connections, so no request meets a dying one."""

BURST = 50
"""Requests started in a row before the event loop gets its turn."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a run under way. `elapsed_s` since its start; counts since then."""

    elapsed_s: float
    sent: int
    ended: int
    served: int
    inflight: int
    refused_attempts: int


OnProgress = Callable[[Progress], None]


async def run_load(params: LoadParams, on_progress: OnProgress | None = None) -> LoadReport:
    """Run the load to its end: `params.seconds` of sending plus at most `params.drain_s`.

    `on_progress` is called about once a second. Failing requests are results, never exceptions.
    Run it on uvloop: it needs a third less CPU.
    """
    raise_file_limit()
    timeout = aiohttp.ClientTimeout(total=params.timeout_s)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        read_bufsize=READ_BUFFER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"content-type": "application/json", **params.headers},
    ) as session:
        return await _Run(params, session).run(on_progress)


class _Run:
    """State of one run; `_start` is the moment 0 of its clock."""

    def __init__(self, params: LoadParams, session: aiohttp.ClientSession) -> None:
        self._params = params
        self._target = Target(session, params.url, time.monotonic)
        self._bodies = Bodies(params)
        self._jitter = random.Random(f"{params.seed}/jitter")
        self._tally = Tally()
        self._served = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._start = 0.0
        self._late_s = 0.0

    async def run(self, on_progress: OnProgress | None) -> LoadReport:
        self._start = time.monotonic()
        reporter = asyncio.create_task(self._report(on_progress)) if on_progress else None
        try:
            await self._send_all()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._params.drain_s)
        finally:
            if reporter is not None:
                reporter.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return build_report(self._params, self._tally, self._now_s(), self._late_s)

    async def _send_all(self) -> None:
        for index, arrival in enumerate(arrivals(self._params)):
            wait_s = arrival.at_s - self._now_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            elif index % BURST == 0:
                await asyncio.sleep(0)
            self._late_s = max(self._late_s, self._now_s() - arrival.at_s)
            task = asyncio.create_task(self._request(arrival))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._tally.sent += 1
        await asyncio.sleep(max(0.0, self._params.seconds - self._now_s()))

    async def _request(self, arrival: Arrival) -> None:
        """One request with its retries; exactly one record, also when the drain cuts it short."""
        attempt = Attempt(End.UNFINISHED)
        tries = 0
        finished = False
        try:
            while True:
                tries += 1
                attempt = await self._attempt(arrival, tries - 1)
                retryable = retry.should_retry(attempt.status, attempt.headers)
                if attempt.end in (End.SERVED, End.INCOMPLETE) or not (
                    self._params.retry and tries <= retry.MAX_RETRIES and retryable
                ):
                    break
                await asyncio.sleep(retry.delay_s(tries - 1, attempt.headers, self._jitter))
            finished = True
        finally:
            self._record(arrival, attempt, tries, finished)

    async def _attempt(self, arrival: Arrival, retries: int) -> Attempt:
        headers = {"x-stainless-retry-count": str(retries)}
        if arrival.priority:
            headers["x-request-priority"] = arrival.priority
        if arrival.tenant:
            headers["x-tenant-id"] = arrival.tenant
        attempt = await send(self._target, self._bodies.of(arrival), headers)
        self._tally.on_attempt(arrival, attempt, self._now_s())
        return attempt

    def _record(self, arrival: Arrival, attempt: Attempt, tries: int, finished: bool) -> None:
        end = attempt.end if finished else End.UNFINISHED
        first = attempt.first_content
        self._served += end is End.SERVED
        self._tally.on_end(
            Record(
                arrival=arrival,
                end=end,
                attempts=tries,
                ended_s=self._now_s(),
                tokens=attempt.tokens,
                ttft_s=None if first is None else first - self._start - arrival.at_s,
                queue_wait_ms=_number(attempt.headers.get("x-queue-wait-ms")),
            )
        )

    async def _report(self, on_progress: OnProgress) -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            tally = self._tally
            on_progress(
                Progress(
                    elapsed_s=self._now_s(),
                    sent=tally.sent,
                    ended=len(tally.records),
                    served=self._served,
                    inflight=len(self._tasks),
                    refused_attempts=tally.refused_attempts,
                )
            )

    def _now_s(self) -> float:
        return time.monotonic() - self._start


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
