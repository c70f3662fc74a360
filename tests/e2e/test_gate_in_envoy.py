"""The adapters behind the real Envoy, with a gate that decides as the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from policy_server.adapters.grpc_server import GrpcServer, build_grpc_server
from tests.support.echo_upstream import running_upstream
from tests.support.envoy_process import running_envoy
from tests.support.fake_gate import FakeGate, admitted, shed
from tests.support.services import services_of
from tests.support.wired import bootstrap_for, ports

CHAT = "/v1/chat/completions"
BODY = {"model": "llama", "stream": True, "max_tokens": 7}


@dataclass
class Gateway:
    """Envoy in front of a fake gate."""

    gate: FakeGate
    address: str
    http: aiohttp.ClientSession
    admin: str
    server: contextlib.AsyncExitStack

    async def post(self, path: str = CHAT) -> int:
        async with self.http.post(path, json=BODY) as response:
            await response.read()
            return response.status

    async def stat(self, name: str) -> int:
        """A counter of Envoy's."""
        async with aiohttp.request("GET", f"{self.admin}/stats?filter=^{name}$") as response:
            return int((await response.text()).rpartition(":")[2])

    async def restart(self, successor: FakeGate) -> None:
        """Stop the policy server and start another one on its port."""
        await self.server.aclose()
        await self.server.enter_async_context(serving(self.address, successor))


@contextlib.asynccontextmanager
async def serving(address: str, gate: FakeGate) -> AsyncIterator[GrpcServer]:
    desk, services = services_of(gate)
    server = build_grpc_server(address, services)
    await server.start()
    handing_back = asyncio.create_task(desk.hand_back_holds())
    try:
        yield server
    finally:
        if gate.closing.is_set():
            await handing_back
        handing_back.cancel()
        await server.stop(1)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    where = ports()
    url, address = f"http://127.0.0.1:{where['gateway']}", f"127.0.0.1:{where['grpc']}"
    gate = FakeGate()
    async with (
        contextlib.AsyncExitStack() as server,
        running_upstream(where["upstream"]),
        running_envoy(bootstrap_for(where), tmp_path),
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as http,
    ):
        await server.enter_async_context(serving(address, gate))
        yield Gateway(gate, address, http, f"http://127.0.0.1:{where['admin']}", server)


def hold(_: object) -> None:
    """Decide later."""


async def test_a_lease_ends_with_the_answer(gateway: Gateway) -> None:
    assert await gateway.post() == 200
    await gateway.gate.until(lambda: gateway.gate.completed)
    (request,) = gateway.gate.submitted
    ((uid, completion),) = gateway.gate.completed
    assert uid == request.uid
    assert (completion.status, completion.reached_upstream) == (200, True)
    assert completion.first_byte_s is not None
    assert (request.model, request.streamed, request.max_tokens) == ("llama", True, 7)
    assert request.node in gateway.gate.nodes


async def test_all_that_wait_are_released_at_once(gateway: Gateway) -> None:
    gate = gateway.gate
    gate.decide = hold
    posts = [asyncio.create_task(gateway.post()) for _ in range(80)]
    await gate.until(lambda: len(gate.places) == 80)
    for request in gate.submitted:
        gate.resolve(request.uid, admitted(request, wait_s=0.1))
    assert set(await asyncio.gather(*posts)) == {200}
    await gate.until(lambda: not gate.leases)


async def test_a_client_that_left_is_not_sent_again(gateway: Gateway) -> None:
    gate = gateway.gate
    gate.decide = hold
    post = asyncio.create_task(gateway.post())
    await gate.until(lambda: gate.places)
    post.cancel()
    await gate.until(lambda: gate.left)
    await gate.until(lambda: gate.completed)
    async with asyncio.timeout(10):  # only the access log's stream is left
        while await gateway.stat("cluster.policy.upstream_rq_active") > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await gateway.stat("cluster.policy.upstream_rq_retry") == 0
    assert len(gate.submitted) == 1


async def test_grpc_callers_are_refused_in_their_own_words(gateway: Gateway) -> None:
    gateway.gate.decide = shed
    headers = {"content-type": "application/grpc"}
    async with gateway.http.post("/inference.S/Infer", headers=headers) as response:
        assert response.headers["grpc-status"] == "8"
        assert response.headers["grpc-retry-pushback-ms"] == "2500"
        assert "try again" in response.headers["grpc-message"]


async def test_a_restart_goes_unnoticed(gateway: Gateway) -> None:
    gateway.gate.decide = hold
    posts = [asyncio.create_task(gateway.post()) for _ in range(30)]
    await gateway.gate.until(lambda: len(gateway.gate.places) == 30)
    waiting = set(gateway.gate.places)
    gateway.gate.closing.set()
    successor = FakeGate()
    await gateway.restart(successor)
    assert set(await asyncio.gather(*posts)) == {200}
    assert {request.uid for request in successor.submitted} == waiting
    assert not gateway.gate.left
