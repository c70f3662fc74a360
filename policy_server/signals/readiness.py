"""Who is ready to work: asks the back ends, or Envoy, once a second, beside everything else.

    probe        every address behind each URL's name is asked; 2xx = ready. SUCCESSES good answers
                 in a row make a back end ready (one at the start: it has been there), so that
                 Envoy, which checks more often, knows it too; FAILURES bad ones make it not ready.
    envoy_admin  the hosts that Envoy would choose. Envoy has its own thresholds.
    count        what the configuration says.

While nobody is ready the question is put four times a second: requests wait for that answer. A
probe that cannot be reached is a back end that is not ready; a name service that does not answer
is none, the addresses that it gave last are asked. An Envoy that cannot be reached says
nothing, and what it said last holds; one that never said anything leaves the pool as if nobody
had been asked, with a warning, because holding everybody on account of a typing error is worse.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import aiohttp
from yarl import URL

from policy_server.lasting import lasting
from policy_server.signals.cluster_page import ready_hosts
from policy_server.signals.trust import Trust

INTERVAL_S = 1.0
URGENT_S = 0.25
TIMEOUT_S = 1.0
FAILURES = 2
SUCCESSES = 2
MAX_ADDRESSES = 256
MAX_PAGE_BYTES = 8 * 1024 * 1024  # a mesh with thousands of clusters
MAX_HEARD = 300
AT_ONCE = 64  # probes in flight per pool


@dataclass(frozen=True, slots=True)
class Source:
    """Who tells about one pool: exactly one of the three. `ca_file`: who signed the certificates
    of https probes, None = somebody whom the system trusts."""

    pool: str
    probe: tuple[str, ...] = ()
    envoy_admin: str | None = None
    cluster: str = ""
    count: int | None = None
    ca_file: str | None = None


@dataclass(slots=True)
class Told:
    """What is known of a pool. `ready` None = nobody can tell; `error`: why, "" = all is well.

    `failing`: what the first of the probes that fail has heard, "" = none fails.
    """

    ready: int | None
    error: str = ""
    failing: str = ""


@dataclass(slots=True)
class _Probed:
    """One address: whether it counts as ready, and how many answers in a row said otherwise."""

    ready: bool
    against: int = 0


class Readiness:
    """One task per pool. All methods must be called on the event loop."""

    def __init__(
        self, tell: Callable[[str, int | None], None], changed: Callable[[str, Told], None]
    ):
        """`tell` gets every count as it changes; `changed` what a person should read of it."""
        self._tell, self._changed = tell, changed
        self._tasks: dict[Source, asyncio.Task[None]] = {}
        self._told: dict[str, Told] = {}
        self._trust = Trust()
        self._session: aiohttp.ClientSession | None = None

    def use(self, sources: Iterable[Source]) -> None:
        """Ask these from now on, and no others."""
        wanted = dict.fromkeys(sources)
        unasked = {source.pool for source in self._tasks} - {source.pool for source in wanted}
        for source in [source for source in self._tasks if source not in wanted]:
            self._tasks.pop(source).cancel()
            self._told.pop(source.pool, None)
        for pool in unasked:
            self._tell(pool, None)
        for source in wanted:
            if source not in self._tasks:
                work = partial(self._follow, source)
                self._tasks[source] = asyncio.create_task(
                    lasting(f"asking after the back ends of {source.pool}", work)
                )

    def told(self, pool: str) -> Told | None:
        """What was said last; None = nothing yet, or nobody is asked."""
        return self._told.get(pool)

    async def stop(self) -> None:
        """End all tasks and close the connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _follow(self, source: Source) -> None:
        loop, known = asyncio.get_running_loop(), dict[tuple[str, str], _Probed]()
        while True:
            began = loop.time()
            told = await self._ask(source, known)
            self._note(source.pool, told)
            if source.count is not None:
                return
            pause_s = URGENT_S if told.ready == 0 else INTERVAL_S
            await asyncio.sleep(max(0.05, pause_s - (loop.time() - began)))

    def _note(self, pool: str, told: Told) -> None:
        last = self._told.get(pool)
        if last is None or last.ready != told.ready:
            self._tell(pool, told.ready)
        self._told[pool] = told
        if last != told:
            self._changed(pool, told)

    async def _ask(self, source: Source, known: dict[tuple[str, str], _Probed]) -> Told:
        if source.count is not None:
            return Told(source.count)
        if source.envoy_admin is not None:
            return await self._ask_envoy(source, source.envoy_admin)
        addresses: list[tuple[str, str]] = []
        for url in dict.fromkeys(source.probe):
            addresses += await _resolve(url, known)
        gate = asyncio.Semaphore(AT_ONCE)
        found = await asyncio.gather(
            *(self._probe(*one, source.ca_file, gate) for one in addresses)
        )
        for gone in known.keys() - set(addresses):
            del known[gone]
        first = source.pool not in self._told
        for address, failure in zip(addresses, found, strict=True):
            good = failure is None
            _judge(known.setdefault(address, _Probed(ready=good and first)), good)
        failing = next((failure for failure in found if failure is not None), "")
        if not addresses:
            failing = f"{_shown(source.probe[0])}: its name has no address"
        return Told(sum(probed.ready for probed in known.values()), failing=failing)

    async def _probe(
        self, url: str, address: str, ca_file: str | None, gate: asyncio.Semaphore
    ) -> str | None:
        """None = ready, else what was heard."""
        target = URL(url)
        try:
            async with (
                gate,
                asyncio.timeout(TIMEOUT_S),
                self._http().get(
                    target.with_host(address),  # brackets an IPv6 address by itself
                    headers={"host": target.authority.rpartition("@")[2]},
                    server_hostname=target.host if target.scheme == "https" else None,
                    allow_redirects=False,
                    ssl=self._trust.of(ca_file),
                ) as answer,
            ):
                if 200 <= answer.status < 300:
                    return None
                heard = f"HTTP {answer.status}"
        except TimeoutError:
            heard = f"no answer within {TIMEOUT_S:g} s"
        except Exception as error:  # whatever a dying server makes the client raise
            heard = str(error)[:MAX_HEARD] or type(error).__name__
        at = "" if address == target.host else f" at {address}"
        return f"{_shown(url)}{at}: {heard}"

    async def _ask_envoy(self, source: Source, admin: str) -> Told:
        page = URL(admin).with_path("/clusters").with_query(format="json")
        error = f"{page.with_user(None)} can't be read"
        with contextlib.suppress(Exception):
            async with asyncio.timeout(TIMEOUT_S), self._http().get(page) as answer:
                body = await _bounded(answer)
            ready = ready_hosts(body, source.cluster) if answer.status == 200 else None
            if ready is not None:
                return Told(ready)
            if answer.status == 200:
                error = f"{page.with_user(None)} names no cluster {source.cluster!r}"
        last = self._told.get(source.pool)
        return Told(last.ready if last else None, error)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


def _shown(url: str) -> str:
    """The URL without user and password."""
    return str(URL(url).with_user(None))


def _judge(probed: _Probed, good: bool) -> None:
    probed.against = 0 if good is probed.ready else probed.against + 1
    if probed.against >= (SUCCESSES if good else FAILURES):
        probed.ready, probed.against = good, 0


async def _resolve(url: str, known: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The URL with each address behind its name, IPv4 where there are any; none when it has none
    now, those that are known already when the name service does not answer."""
    target = URL(url)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await loop.getaddrinfo(target.host or "", target.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        silent = isinstance(error, TimeoutError) or error.errno == socket.EAI_AGAIN
        return [(of, address) for of, address in known if of == url] if silent else []
    by_family: dict[int, list[str]] = {}
    for family, _, _, _, address in found:
        by_family.setdefault(family, []).append(str(address[0]))
    chosen = by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6) or []
    return [(url, address) for address in dict.fromkeys(chosen)][:MAX_ADDRESSES]


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_PAGE_BYTES:
            answer.close()
            return b""
    return bytes(body)
