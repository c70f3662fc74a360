"""Who is ready: probed back ends that come and go, Envoy's page, a count."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from policy_server.signals import readiness
from policy_server.signals.readiness import Readiness, Source, Told
from tests.support.envoy_process import free_ports

Handler = Callable[[web.Request], object]


@dataclass
class Listener:
    counts: list[int | None] = field(default_factory=list)
    said: list[Told] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, pool: str, ready: int | None) -> None:
        assert pool == "chat"
        self.counts.append(ready)
        self.changed.set()

    def note(self, pool: str, told: Told) -> None:
        self.said.append(told)
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def server(handler: Handler, port: int, host: str = "127.0.0.1") -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def following(source: Source) -> AsyncIterator[Listener]:
    listener = Listener()
    watcher = Readiness(listener.tell, listener.note)
    watcher.use([source])
    try:
        yield listener
    finally:
        await watcher.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "INTERVAL_S", 0.05)
    monkeypatch.setattr(readiness, "URGENT_S", 0.05)
    monkeypatch.setattr(readiness, "TIMEOUT_S", 0.5)


async def healthy(_: web.Request) -> web.Response:
    return web.Response()


async def loading(_: web.Request) -> web.Response:
    return web.Response(status=503)


async def test_back_ends_that_come_and_go_are_counted() -> None:
    one, two = free_ports(2)
    source = Source("chat", probe=tuple(f"http://127.0.0.1:{p}/health" for p in (one, two)))
    async with following(source) as heard:
        await heard.until(lambda: heard.counts == [0])
        async with server(healthy, one):
            await heard.until(lambda: heard.counts[-1] == 1)
            async with server(healthy, two):
                await heard.until(lambda: heard.counts[-1] == 2)
            await heard.until(lambda: heard.counts[-1] == 1)
        await heard.until(lambda: heard.counts[-1] == 0)
    assert heard.counts == [0, 1, 2, 1, 0]


async def test_one_that_answers_503_while_it_loads_is_not_ready() -> None:
    (port,) = free_ports(1)
    async with (
        server(loading, port),
        following(Source("chat", probe=(f"http://127.0.0.1:{port}/health",))) as heard,
    ):
        await heard.until(lambda: heard.counts == [0])


async def test_a_back_end_with_an_ipv6_address_is_ready() -> None:
    (port,) = free_ports(1)
    source = Source("chat", probe=(f"http://user:secret@[::1]:{port}/health",))
    async with following(source) as heard:
        await heard.until(lambda: heard.counts == [0])
        assert f"http://[::1]:{port}/health: " in heard.said[0].failing
        async with server(healthy, port, "::1"):
            await heard.until(lambda: heard.said[-1] == Told(1))
    assert "secret" not in repr(heard.said)


async def test_what_a_failing_probe_has_heard_is_told() -> None:
    loads, silent, away = free_ports(3)

    async def hangs(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with server(loading, loads), server(hangs, silent):
        for port, heard_of in (
            (loads, "HTTP 503"),
            (silent, "no answer within 0.5 s"),
            (away, "Cannot connect to host"),
        ):
            source = Source("chat", probe=(f"http://localhost:{port}/health",))
            async with following(source) as heard:
                await heard.until(lambda: heard.said)
            assert heard.said[0].failing.startswith(f"http://localhost:{port}/health at 127.0.0.1:")
            assert heard_of in heard.said[0].failing


async def test_a_name_without_an_address_is_told() -> None:
    source = Source("chat", probe=("http://nobody.invalid/health",))
    async with following(source) as heard:
        await heard.until(lambda: heard.said)
    assert heard.said[0].ready == 0
    assert "no address" in heard.said[0].failing


async def test_a_single_lost_probe_takes_nobody_away() -> None:
    (port,) = free_ports(1)
    asked = 0

    async def stumbles(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        heard.changed.set()
        return web.Response(status=503 if asked % 3 == 0 else 200)

    async with (
        server(stumbles, port),
        following(Source("chat", probe=(f"http://127.0.0.1:{port}/health",))) as heard,
    ):
        await heard.until(lambda: asked > 7)
    assert heard.counts == [1]


async def test_one_that_hangs_is_not_ready() -> None:
    (port,) = free_ports(1)

    async def hangs(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with (
        server(hangs, port),
        following(Source("chat", probe=(f"http://127.0.0.1:{port}/health",))) as heard,
    ):
        await heard.until(lambda: heard.counts == [0])


async def test_a_name_without_an_address_is_a_back_end_that_is_not_ready() -> None:
    async with following(Source("chat", probe=("http://no-such-name.invalid/health",))) as heard:
        await heard.until(lambda: heard.counts == [0])


async def test_every_address_behind_a_name_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A headless service of Kubernetes has one address per pod."""
    (port,) = free_ports(1)
    hosts: list[str] = []

    async def pod(request: web.Request) -> web.Response:
        hosts.append(request.host)
        return web.Response()

    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def resolve(host: str, where: int, **more: int) -> object:
        if host != "model.pods":
            return await real(host, where, **more)
        return [(2, 1, 6, "", (f"127.0.0.{i}", where)) for i in (1, 2, 3)]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    async with (
        server(pod, port),
        following(Source("chat", probe=(f"http://model.pods:{port}/health",))) as heard,
    ):
        await heard.until(lambda: heard.counts)
    assert heard.counts == [1]  # only 127.0.0.1 listens
    assert set(hosts) == {f"model.pods:{port}"}


async def test_a_name_service_that_does_not_answer_takes_nobody_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = free_ports(1)
    loop = asyncio.get_running_loop()
    failures: list[OSError] = []
    asked = 0

    async def resolve(_host: str, where: int, **_more: int) -> object:
        nonlocal asked
        asked += 1
        heard.changed.set()
        if failures:
            raise failures[0]
        return [(2, 1, 6, "", ("127.0.0.1", where))]

    async with (
        server(healthy, port),
        following(Source("chat", probe=(f"http://model.pods:{port}/health",))) as heard,
    ):
        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        await heard.until(lambda: heard.counts == [1])
        failures.append(socket.gaierror(socket.EAI_AGAIN, "try again"))
        asked = 0
        await heard.until(lambda: asked > 3)
        assert heard.counts == [1]
        failures[0] = socket.gaierror(socket.EAI_NONAME, "no such name")
        await heard.until(lambda: heard.counts == [1, 0])


async def test_a_pool_that_nobody_is_asked_about_any_more_has_no_number() -> None:
    heard = Listener()
    watcher = Readiness(heard.tell, heard.note)
    watcher.use([Source("chat", count=0)])
    await heard.until(lambda: heard.counts == [0])
    watcher.use([Source("chat", count=2)])
    await heard.until(lambda: heard.counts == [0, 2])
    watcher.use([])
    await watcher.stop()
    assert heard.counts == [0, 2, None]


async def test_envoys_page_is_taken_at_its_word() -> None:
    (port,) = free_ports(1)
    health: list[dict[str, object]] = [{"failed_active_health_check": True}, {}]

    async def clusters(request: web.Request) -> web.Response:
        assert request.path_qs == "/clusters?format=json"
        hosts = [{"health_status": one} for one in health]
        return web.Response(
            body=json.dumps({"cluster_statuses": [{"name": "upstream", "host_statuses": hosts}]})
        )

    source = Source("chat", envoy_admin=f"http://127.0.0.1:{port}", cluster="upstream")
    async with server(clusters, port), following(source) as heard:
        await heard.until(lambda: heard.counts == [1])
        health[0] = {}
        await heard.until(lambda: heard.counts[-1] == 2)
        health.clear()
        await heard.until(lambda: heard.counts[-1] == 0)


async def test_an_envoy_that_was_never_reached_says_nothing_and_why() -> None:
    (port,) = free_ports(1)
    source = Source("chat", envoy_admin=f"http://127.0.0.1:{port}", cluster="upstream")
    async with following(source) as heard:
        await heard.until(lambda: heard.counts == [None])
    assert "can't be read" in heard.said[-1].error


async def test_what_a_lost_envoy_said_last_holds() -> None:
    (port,) = free_ports(1)

    async def clusters(_: web.Request) -> web.Response:
        return web.Response(body=b'{"cluster_statuses": [{"name": "upstream"}]}')

    source = Source("chat", envoy_admin=f"http://127.0.0.1:{port}", cluster="upstream")
    async with following(source) as heard:
        async with server(clusters, port):
            await heard.until(lambda: heard.counts[-1:] == [0])
        await heard.until(lambda: heard.said[-1].error)
        assert heard.counts[-1] == 0


async def test_a_cluster_that_envoy_does_not_know_is_said() -> None:
    (port,) = free_ports(1)

    async def clusters(_: web.Request) -> web.Response:
        return web.Response(body=b'{"cluster_statuses": []}')

    source = Source("chat", envoy_admin=f"http://127.0.0.1:{port}", cluster="modles")
    async with server(clusters, port), following(source) as heard:
        await heard.until(lambda: heard.said)
    assert heard.said[-1].ready is None
    assert "'modles'" in heard.said[-1].error


async def test_a_count_is_told_as_it_is() -> None:
    async with following(Source("chat", count=3)) as heard:
        await heard.until(lambda: heard.counts == [3])


async def test_a_mistake_of_ours_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policy_server.lasting.FIRST_PAUSE_S", 0.001)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    told: list[int | None] = []

    def once_broken(_pool: str, ready: int | None) -> None:
        told.append(ready)
        if len(told) == 1:
            raise RuntimeError("a mistake")

    readiness = Readiness(once_broken, lambda *_: None)
    readiness.use([Source("chat", count=3)])
    async with asyncio.timeout(10):
        while len(told) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert told == [3, 3]
    await readiness.stop()
