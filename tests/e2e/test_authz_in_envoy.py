"""ext_authz behind the real Envoy, with a gate that decides as the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from policy_server.adapters.grpc_server import build_grpc_server
from policy_server.adapters.rules import ClassifyRules, PoolRule
from tests.support.echo_upstream import EchoUpstream, running_upstream
from tests.support.envoy_process import running_envoy
from tests.support.fake_gate import FakeGate
from tests.support.services import services_of
from tests.support.wired import bootstrap_for, connection_manager, http_filter, ports

BODY = {"model": "llama", "stream": True, "max_tokens": 7}
RULES = ClassifyRules(pools=(PoolRule("here", route="governed", cluster="upstream"),))


@dataclass
class Gateway:
    """Envoy in front of a fake gate."""

    gate: FakeGate
    http: aiohttp.ClientSession
    upstream: EchoUpstream

    async def post(self, path: str = "/v1/chat/completions") -> int:
        async with self.http.post(path, json=BODY) as response:
            await response.read()
            return response.status


@contextlib.asynccontextmanager
async def running(directory: Path, *, stamped: bool = True) -> AsyncIterator[Gateway]:
    where = ports()
    bootstrap = bootstrap_for(where, wiring="authz")
    manager = connection_manager(bootstrap)
    manager["access_log_options"]["access_log_flush_interval"] = "0.1s"
    http_filter(bootstrap, "policy.gate")["grpc_service"]["timeout"] = "30s"
    if not stamped:
        del manager["early_header_mutation_extensions"]
    gate = FakeGate()
    server = build_grpc_server(f"127.0.0.1:{where['grpc']}", services_of(gate, RULES)[1])
    await server.start()
    url = f"http://127.0.0.1:{where['gateway']}"
    try:
        async with (
            running_upstream(where["upstream"]) as upstream,
            running_envoy(bootstrap, directory),
            aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as http,
        ):
            yield Gateway(gate, http, upstream)
    finally:
        await server.stop(0)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def test_a_check_tells_what_classification_needs(gateway: Gateway) -> None:
    assert await gateway.post() == 200
    (request,) = gateway.gate.submitted
    assert request.pool == "here"
    assert (request.model, request.streamed, request.max_tokens) == ("llama", True, 7)
    assert len(request.uid) == 36
    await gateway.gate.until(lambda: gateway.gate.completed)
    ((uid, completion),) = gateway.gate.completed
    assert (uid, completion.status) == (request.uid, 200)


async def test_answers_under_way_send_heartbeats_and_those_who_wait_none(gateway: Gateway) -> None:
    gate = gateway.gate
    slow = asyncio.create_task(gateway.post("/slow"))
    await gate.until(lambda: gate.leases)
    gate.decide = lambda _: None
    held = asyncio.create_task(gateway.post())
    await gate.until(lambda: gate.places and len(gate.heartbeats) >= 3)
    assert {uid for uid, _ in gate.heartbeats} == gate.leases
    gateway.upstream.finish.set()
    assert await slow == 200
    held.cancel()
    await gate.until(lambda: not gate.places)


async def test_envoys_timeout_bounds_the_wait(gateway: Gateway) -> None:
    await gateway.post()
    assert gateway.gate.submitted[0].budget_s == 15
    async with gateway.http.post("/x", headers={"x-request-priority": "2"}) as response:
        assert response.status == 200
    assert 25 < gateway.gate.submitted[1].budget_s < 30  # P2 may wait 45 s, Envoy does for 30


async def test_where_nothing_is_stamped_envoys_own_id_serves(tmp_path: Path) -> None:
    async with running(tmp_path, stamped=False) as gateway:
        assert [await gateway.post() for _ in range(2)] == [200, 200]
        uids = {request.uid for request in gateway.gate.submitted}
        assert len(uids) == 2
        assert all(uid.isdigit() for uid in uids)
