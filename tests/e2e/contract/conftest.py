"""One running stack per wiring, shared by all cases; the stacks differ in nothing else.

A policy server with one slot, an echoing model server, and five Envoys:

    near     the usual one: fail-closed, HTTP model server
    other    a second one of the same kind
    grpc     fail-closed, gRPC model server (h2c)
    open     fail-open
    hasty    fail-closed, but it gives an outage up at once; its model server is down

A second stack per wiring, with the usual Envoy and the gRPC one, has its only pool by the model
that a body names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio

from policy_server.envoy_config.options import Wiring
from tests.support.echo_upstream import running_upstream
from tests.support.envoy_process import free_ports, running_envoy
from tests.support.live import CONFIG, Envoy, Live, at_rest
from tests.support.stack import stop
from tests.support.wired import bootstrap_for, http_filter, ports

WIRINGS: tuple[Wiring, ...] = ("gate", "authz", "stream")
BY_MODEL = {
    **CONFIG,
    "govern": {"paths": ["/v1/"]},
    "pools": [{**CONFIG["pools"][0], "match": {"model": "m*", "path_prefix": "/v1/"}}],
}


@contextlib.asynccontextmanager
async def running_live(
    wiring: Wiring, directory: Path, settings: Mapping[str, Any] = CONFIG, few: bool = False
) -> AsyncIterator[Live]:
    """The stack for one wiring; `few`: two Envoys only."""
    where = ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    config = directory / "config.yaml"
    jobs = {"via": f"http://127.0.0.1:{where['jobs']}", "tenant_max_jobs": 5}
    config.write_text(json.dumps({"server": server, **settings, "jobs": jobs}))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=60)
    async with contextlib.AsyncExitStack() as cleanup:
        client = aiohttp.ClientSession(connector=connector, timeout=timeout)
        client = await cleanup.enter_async_context(client)
        echo = await cleanup.enter_async_context(running_upstream(where["upstream"]))
        live = Live(directory, where, config, client, wiring, echo)
        grpc_port = await cleanup.enter_async_context(_grpc_echo())
        await live.start_policy()
        cleanup.push_async_callback(lambda: stop(live.policy))
        envoys: dict[str, dict[str, Any]] = {
            "near": {},
            "grpc": {"upstream": f"h2c://127.0.0.1:{grpc_port}"},
            "other": {},
            "open": {"on_outage": "open"},
            "hasty": {"upstream": "http://127.0.0.1:9"},
        }
        for name, options in list(envoys.items())[: 2 if few else None]:
            own = dict(zip(("gateway", "admin"), free_ports(2), strict=True))
            bootstrap = bootstrap_for(
                {**where, **own}, config, wiring=wiring, node_id=name, **options
            )
            if name != "near":  # one of them takes the jobs on their way
                resources = bootstrap["static_resources"]
                resources["listeners"] = [x for x in resources["listeners"] if x["name"] != "jobs"]
            if name == "hasty":
                retry = http_filter(bootstrap, "policy.gate")["grpc_service"]["retry_policy"]
                retry["num_retries"] = 1
            (directory / name).mkdir()
            process = await cleanup.enter_async_context(running_envoy(bootstrap, directory / name))
            live.envoys[name] = Envoy(process, f"http://127.0.0.1:{own['gateway']}")
        live.envoy = live.envoys["near"].process
        yield live


@contextlib.asynccontextmanager
async def _grpc_echo() -> AsyncIterator[int]:
    """A gRPC model server; its port."""

    async def echo(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return request

    async def full(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "engine full")

    async def breaks(_: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield b"begun"
        await context.abort(grpc.StatusCode.UNAVAILABLE, "engine gone")

    async def talk(messages: AsyncIterator[bytes], _: grpc.aio.ServicerContext) -> Any:
        async for message in messages:
            yield message

    server = grpc.aio.server()
    handlers = {
        "Do": grpc.unary_unary_rpc_method_handler(echo),
        "Full": grpc.unary_unary_rpc_method_handler(full),
        "Breaks": grpc.unary_stream_rpc_method_handler(breaks),
        "Talk": grpc.stream_stream_rpc_method_handler(talk),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=WIRINGS)
async def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    """Everything running in one wiring."""
    directory = tmp_path_factory.mktemp(request.param)
    async with running_live(request.param, directory) as live:
        yield live


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=WIRINGS)
async def stack_by_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    """The stack whose pool goes by the model, in one wiring."""
    directory = tmp_path_factory.mktemp(f"{request.param}-by-model")
    async with running_live(request.param, directory, BY_MODEL, few=True) as live:
        yield live


@pytest_asyncio.fixture(loop_scope="session")
async def by_model(stack_by_model: Live) -> AsyncIterator[Live]:
    """That stack, at rest before and after the case."""
    async with at_rest(stack_by_model):
        yield stack_by_model


@pytest_asyncio.fixture(loop_scope="session")
async def live(stack: Live) -> AsyncIterator[Live]:
    """The stack, at rest before and after the case."""
    async with at_rest(stack):
        yield stack
