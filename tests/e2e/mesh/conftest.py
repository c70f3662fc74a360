"""One running stack per mesh and wiring: the real policy server, an echoing model server, and the
real Envoy as the mesh's control plane would configure it from our checked-in objects.

    near     fail-closed
    open     fail-open
    hasty    fail-closed, but it gives an outage up at once
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from policy_server.config import load_config
from policy_server.envoy_config.command import Asked, Target, documents
from policy_server.envoy_config.options import OnOutage, Wiring
from tests.support.echo_upstream import running_upstream
from tests.support.envoy_process import free_ports, running_envoy
from tests.support.live import CONFIG, Envoy, Live, at_rest
from tests.support.mesh import envoy_gateway, istio
from tests.support.stack import stop
from tests.support.wired import ports

Plain = dict[str, Any]


@dataclass(frozen=True)
class Mesh:
    """A target and a wiring of it, and what it can't do: have a hold survive a crash of the policy
    server, or an answer under way; say `x-envoy-ratelimited`; remove a client's own `x-policy-`.
    """

    target: Target
    wiring: Wiring
    survives_crash: bool = True
    lasting_answers: bool = True
    labelled: bool = True
    cleans: bool = True

    def __str__(self) -> str:
        return f"{self.target}-{self.wiring}"

    def proxy(self, where: dict[str, int], config: Path, on_outage: OnOutage) -> Plain:
        """The Envoy configuration behind our objects."""
        settings = load_config(config, {})

        def made(target: Target) -> list[Plain]:
            asked = Asked(target, self.wiring, on_outage)
            found: list[Plain] = json.loads(json.dumps(documents(settings, asked)))
            return found

        if self.target == "envoy-gateway":
            return envoy_gateway.gateway_proxy(where, made("envoy-gateway"))
        return istio.gateway_proxy(where, made("istio"), made("istio-values"))


MESHES = [
    Mesh("istio", "gate"),
    Mesh("istio", "authz", survives_crash=False, cleans=False),
    Mesh("envoy-gateway", "stream", lasting_answers=False, labelled=False),
    Mesh("envoy-gateway", "authz"),
]


@dataclass
class LiveMesh(Live):
    """The running stack."""

    mesh: Mesh = MESHES[0]
    admin: dict[str, str] = field(default_factory=dict)
    """The admin page of each Envoy."""

    async def start_policy(self, *arguments: str) -> None:
        """The policy server, told of the wiring where Envoy can't say it."""
        if self.mesh.target == "envoy-gateway" and self.mesh.wiring == "stream":
            arguments = (*arguments, "--wiring", "stream")
        await super().start_policy(*arguments)


def give_up_at_once(proxy: Plain) -> None:
    """Leave one retry of what asks the policy server."""
    for service in _services(proxy):
        service["retry_policy"]["num_retries"] = 1


def _services(data: Any) -> list[Plain]:
    if isinstance(data, list):
        return [found for inner in data for found in _services(inner)]
    if not isinstance(data, dict):
        return []
    own = [data["grpc_service"]] if "retry_policy" in data.get("grpc_service", {}) else []
    return own + _services(list(data.values()))


@contextlib.asynccontextmanager
async def running_mesh(mesh: Mesh, directory: Path) -> AsyncIterator[LiveMesh]:
    """The stack for one mesh."""
    where = ports()
    server = {"grpc": f"127.0.0.1:{where['grpc']}", "http": f"127.0.0.1:{where['http']}"}
    config = directory / "config.yaml"
    config.write_text(json.dumps({"server": server, **CONFIG}))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=60)
    async with contextlib.AsyncExitStack() as cleanup:
        client = aiohttp.ClientSession(connector=connector, timeout=timeout)
        client = await cleanup.enter_async_context(client)
        echo = await cleanup.enter_async_context(running_upstream(where["upstream"]))
        live = LiveMesh(directory, where, config, client, mesh.wiring, echo, mesh=mesh)
        await live.start_policy()
        cleanup.push_async_callback(lambda: stop(live.policy))
        outages: dict[str, OnOutage] = {"near": "closed", "open": "open", "hasty": "closed"}
        for name, on_outage in outages.items():
            own = dict(zip(("gateway", "admin"), free_ports(2), strict=True))
            proxy = mesh.proxy({**where, **own}, config, on_outage)
            if name == "hasty":
                give_up_at_once(proxy)
            (directory / name).mkdir()
            process = await cleanup.enter_async_context(running_envoy(proxy, directory / name))
            live.envoys[name] = Envoy(process, f"http://127.0.0.1:{own['gateway']}")
            live.admin[name] = f"http://127.0.0.1:{own['admin']}"
        live.envoy = live.envoys["near"].process
        yield live


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=MESHES, ids=str)
async def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LiveMesh]:
    """Everything running in one mesh."""
    directory = tmp_path_factory.mktemp(str(request.param))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in istio.ENVIRONMENT.items():
            patch.setenv(name, value)
        async with running_mesh(request.param, directory) as live:
            yield live


@pytest_asyncio.fixture(loop_scope="session")
async def live(stack: LiveMesh) -> AsyncIterator[LiveMesh]:
    """The stack, at rest before and after the case."""
    async with at_rest(stack):
        yield stack
