"""The external scaler as KEDA's own client meets it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest

from policy_server.adapters import keda
from policy_server.adapters.grpc_server import build_grpc_server
from policy_server.adapters.keda import KedaScaler
from policy_server.core.demand import Demand
from policy_server.core.events import Waiting
from policy_server.core.request import Priority, Request
from tests.support.fake_gate import FakeGate
from tests.support.keda_client import KedaClient
from tests.support.services import services_of

QUIET = Demand(waiting=0, jobs=0, inflight=0, limit=16.0, ready=1)
BUSY = Demand(waiting=7, jobs=3, inflight=12, limit=16.0, ready=1)


@dataclass
class Scene:
    """A served scaler whose pools are as the test says."""

    channel: grpc.aio.Channel = field(init=False)
    port: int = 0
    pools: dict[str, Demand] = field(default_factory=lambda: {"chat": QUIET})

    def __post_init__(self) -> None:
        self.scaler = KedaScaler(lambda: list(self.pools), lambda name: self.pools.get(name))  # noqa: PLW0108 (the pools change)

    def client(self, **metadata: str) -> KedaClient:
        return KedaClient(self.channel, metadata)

    def change(self, demand: Demand, pool: str = "chat") -> None:
        """The streams look at once."""
        self.pools[pool] = demand
        for watcher in self.scaler._watchers:
            watcher.wake()

    def arrive(self, pool: str = "chat") -> None:
        """A request starts to wait."""
        self.pools[pool] = BUSY
        self.scaler.on_event(Waiting(Request("u", pool, Priority.P1, 0.0, 9.0), None), 0.0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    server = build_grpc_server("127.0.0.1:0", services_of(FakeGate(), keda=made.scaler)[1])
    await server.start()
    made.port = server.port
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as made.channel:
        yield made
    made.scaler.let_go()
    await server.stop(0)


async def test_a_quiet_pool_is_not_active_and_a_busy_one_is(scene: Scene) -> None:
    assert not await scene.client().is_active()
    scene.arrive()
    assert await scene.client().is_active()


@pytest.mark.parametrize(
    ("metadata", "name", "target", "value"),
    [
        ({}, "waiting-per-replica-chat", 2.0, 7.0),
        ({"waitingPerReplica": "2.5"}, "waiting-per-replica-chat", 2.5, 7.0),
        ({"utilization": "0.8"}, "utilization-chat", 0.8, 0.75),
        ({"jobsPerReplica": "20"}, "jobs-per-replica-chat", 20.0, 3.0),
    ],
)
async def test_a_metric_has_a_target_and_a_value_in_both_fields(
    scene: Scene, metadata: dict[str, str], name: str, target: float, value: float
) -> None:
    scene.pools["chat"] = BUSY
    client = scene.client(**metadata)
    spec = await client.metric_spec()
    assert (spec.name, spec.exact) == (name, target)
    assert spec.whole >= 1
    found = await client.metric(name)
    assert (found.name, found.exact) == (name, value)
    assert found.whole >= value


async def test_nothing_waiting_is_nought_in_both_fields(scene: Scene) -> None:
    found = await scene.client().metric("waiting-per-replica-chat")
    assert (found.whole, found.exact) == (0, 0.0)


async def test_each_pool_has_its_own_numbers(scene: Scene) -> None:
    scene.pools = {"chat": QUIET, "batch": BUSY}
    assert not await scene.client(pool="chat").is_active()
    assert await scene.client(pool="batch").is_active()


@pytest.mark.parametrize(
    ("metadata", "code", "words"),
    [
        ({"pool": "nope"}, grpc.StatusCode.NOT_FOUND, "no pool 'nope'; there is: chat"),
        ({"waitingPerReplica": "-1"}, grpc.StatusCode.INVALID_ARGUMENT, "'-1' is no target"),
        ({"waitngPerReplica": "1"}, grpc.StatusCode.INVALID_ARGUMENT, "did you mean"),
        ({"threshold": "3"}, grpc.StatusCode.INVALID_ARGUMENT, "'threshold' is not known; known"),
    ],
)
async def test_what_is_wrong_is_a_clear_error_in_every_call(
    scene: Scene, metadata: dict[str, str], code: grpc.StatusCode, words: str
) -> None:
    client = scene.client(**metadata)
    for call in (client.is_active(), client.metric_spec(), client.metric("x"), first(client)):
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await call
        assert found.value.code() is code
        assert words in (found.value.details() or "")
        assert "llm/model" in (found.value.details() or "")


async def first(client: KedaClient) -> bool:
    return await anext(client.stream_is_active())


async def test_a_metric_of_another_trigger_is_not_found(scene: Scene) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await scene.client().metric("utilization-chat")
    assert found.value.code() is grpc.StatusCode.NOT_FOUND


async def test_bytes_that_are_no_message_are_refused(scene: Scene) -> None:
    for method in ("IsActive", "GetMetricSpec", "GetMetrics"):
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await scene.client().call(method, b"\xff\xff\xff")
        assert found.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_newer_stream_of_targets_is_unimplemented(scene: Scene) -> None:
    """KEDA then asks GetMetricSpec, as ever."""
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await scene.client().call("StreamMetricSpec", b"")
    assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_first_request_out_of_silence_is_pushed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keda, "LOOK_S", 3600.0)  # nobody looks: only the push can tell
    stream = scene.client().stream_is_active()
    assert not await anext(stream)
    scene.arrive()
    async with asyncio.timeout(20):
        assert await anext(stream)


async def test_silence_is_told_when_it_lasts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keda, "LOOK_S", 0.02)
    scene.arrive()
    stream = scene.client().stream_is_active()
    assert await anext(stream)
    scene.pools["chat"] = QUIET
    async with asyncio.timeout(20):
        assert not await anext(stream)


async def test_one_stream_too_many_takes_the_place_of_the_oldest(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keda, "MAX_STREAMS", 2)
    streams = [scene.client().stream_is_active() for _ in range(3)]
    for stream in streams:
        assert not await anext(stream)
    async with asyncio.timeout(20):
        with pytest.raises(StopAsyncIteration):
            await anext(streams[0])
    scene.arrive()
    async with asyncio.timeout(20):
        assert await anext(streams[1])
        assert await anext(streams[2])


NO_WINDOW = (
    ("grpc.http2.lookahead_bytes", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
"""A client on a connection of its own that takes nothing before it is read: the few bytes of these
messages would never fill the usual window."""


async def test_a_client_that_does_not_read_holds_nobody_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is told how it is when it reads again, not all that it missed."""
    monkeypatch.setattr(keda, "LOOK_S", 3600.0)
    address = f"127.0.0.1:{scene.port}"
    async with grpc.aio.insecure_channel(address, NO_WINDOW) as channel, asyncio.timeout(20):
        sleepy = KedaClient(channel, {}).stream_is_active()
        assert not await anext(sleepy)
        scene.arrive()  # the server is stuck with this word
        awake = scene.client().stream_is_active()
        assert await anext(awake)
        for _ in range(10):
            for demand in (QUIET, BUSY):
                scene.change(demand)
                assert await anext(awake) is demand.active
                assert await scene.client().is_active() is demand.active
        scene.change(QUIET)
        assert not await anext(awake)
        stuck, free = scene.scaler._watchers
        assert (stuck.told, free.told) == (True, False)
        assert await anext(sleepy)
        assert not await anext(sleepy)


async def test_a_stream_ends_when_its_client_goes(scene: Scene) -> None:
    call = asyncio.create_task(collect(scene.client()))
    async with asyncio.timeout(20):
        while not scene.scaler._watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        call.cancel()
        while scene.scaler._watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def collect(client: KedaClient) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in client.stream_is_active():
            pass


async def test_on_shutdown_the_streams_end_cleanly(scene: Scene) -> None:
    stream = scene.client().stream_is_active()
    assert not await anext(stream)
    scene.scaler.let_go()
    async with asyncio.timeout(20):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_pool_that_a_reload_removed_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keda, "LOOK_S", 0.02)
    stream = scene.client(pool="chat").stream_is_active()
    assert not await anext(stream)
    scene.pools = {"other": QUIET}
    async with asyncio.timeout(20):
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await anext(stream)
    assert found.value.code() is grpc.StatusCode.NOT_FOUND
