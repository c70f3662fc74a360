"""The generated bootstrap under a real Envoy, between a scripted policy server and an echo."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from policy_server.config import load_config
from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.options import GatewayOptions, Upstream
from tests.support.echo_upstream import EchoUpstream, running_upstream
from tests.support.envoy_process import free_ports, running_envoy
from tests.support.scripted_policy import ScriptedPolicy, Seen

TLS = Path(__file__).parent / "tls"


@dataclass
class Wired:
    """One gateway under test."""

    url: str
    ports: dict[str, int]
    policy: ScriptedPolicy
    upstream: EchoUpstream
    http: aiohttp.ClientSession

    @property
    def seen(self) -> Seen:
        """What the policy server saw."""
        return self.policy.seen

    async def post(self, path: str = "/v1/chat/completions", **kwargs: Any) -> Answer:
        """One POST, read to its end."""
        return await self.ask("POST", path, **kwargs)

    async def ask(self, method: str, path: str, **kwargs: Any) -> Answer:
        """One request, read to its end. `script` is what the policy server shall do."""
        headers = {"x-test": kwargs.pop("script", ""), **kwargs.pop("headers", {})}
        async with self.http.request(method, path, headers=headers, **kwargs) as response:
            return Answer(response.status, response.headers, await response.read())


@dataclass
class Answer:
    """What the client got."""

    status: int
    headers: Any
    body: bytes


def bootstrap_for(
    ports: dict[str, int], config_yaml: Path | None = None, **options: Any
) -> dict[str, Any]:
    """The generator's bootstrap on these ports."""
    upstream = options.pop("upstream", f"http://127.0.0.1:{ports['upstream']}")
    return build_bootstrap(
        load_config(config_yaml, {}),
        GatewayOptions(
            upstreams=(Upstream.parse(upstream),),
            host="127.0.0.1",
            port=ports["gateway"],
            grpc_port=ports["grpc"],
            http_port=ports["http"],
            admin_port=ports["admin"],
            **options,
        ),
    )


def connection_manager(bootstrap: dict[str, Any]) -> Any:
    """The HTTP connection manager inside a bootstrap."""
    chain = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]


def http_filter(bootstrap: dict[str, Any], name: str) -> Any:
    """The filter of that name inside a bootstrap."""
    filters = connection_manager(bootstrap)["http_filters"]
    return next(f for f in filters if f["name"] == name)["typed_config"]


def ports() -> dict[str, int]:
    """Free ports for everything that listens."""
    names = ("gateway", "grpc", "http", "admin", "upstream", "jobs")
    return dict(zip(names, free_ports(len(names)), strict=True))


@contextlib.asynccontextmanager
async def wired(
    directory: Path,
    bootstrap: dict[str, Any],
    where: dict[str, int],
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[Wired]:
    """Everything running on the ports `where`, and a client."""
    policy = ScriptedPolicy()
    await policy.start(where["grpc"], credentials)
    url = f"http://127.0.0.1:{where['gateway']}"
    try:
        async with (
            running_upstream(where["upstream"]) as upstream,
            running_envoy(bootstrap, directory),
            aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as http,
        ):
            yield Wired(url, where, policy, upstream, http)
    finally:
        await policy.stop()
