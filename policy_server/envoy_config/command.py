"""What `policy-server envoy-config` prints, and what is checked in under envoy/."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from policy_server.config import Config, split_host_port
from policy_server.config_jobs import takes_jobs
from policy_server.config_source import ConfigError
from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.envoy_gateway import envoy_gateway_documents
from policy_server.envoy_config.istio import istio_documents, istio_values
from policy_server.envoy_config.kubernetes import DEFAULT_NAMESPACE, MeshOptions, ObjectName
from policy_server.envoy_config.options import (
    DEFAULT_NODE,
    GatewayOptions,
    OnOutage,
    Upstream,
    Wiring,
)
from policy_server.envoy_config.plain import Document, to_yaml, to_yaml_stream

ANY_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
DEFAULT_UPSTREAM = "http://127.0.0.1:8000"
DEFAULT_SERVICE = "http://model.models:8000"

Target = Literal["bootstrap", "istio", "istio-values", "envoy-gateway"]


@dataclass(frozen=True, slots=True)
class _Mesh:
    """One mesh target: who builds it, and the gateway that its own documentation uses."""

    documents: Callable[[Config, MeshOptions], list[Document]]
    gateway: str
    routes: bool


MESHES = {
    "istio": _Mesh(istio_documents, "istio-system/ingressgateway", routes=False),
    "istio-values": _Mesh(istio_values, "istio-system/ingressgateway", routes=False),
    "envoy-gateway": _Mesh(envoy_gateway_documents, "default/eg", routes=True),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of `envoy-config`; None = the target's default."""

    target: Target = "bootstrap"
    wiring: Wiring = "gate"
    on_outage: OnOutage = "closed"
    upstreams: Sequence[str] = ()
    gateway: str | None = None
    namespace: str | None = None
    node: str | None = None


def render(config: Config, asked: Asked) -> str:
    """The target's side as YAML, under a comment that says how it was made."""
    comment = f"Generated, do not edit. Made by:\n{_command(asked)}"
    if asked.target in MESHES:
        if asked.node is not None:
            raise ConfigError("--node: a mesh names its proxies by itself; leave it out")
        return to_yaml_stream(documents(config, asked), comment)
    if asked.gateway is not None or asked.namespace is not None:
        raise ConfigError("--gateway and --namespace are of meshes; leave them out here")
    return to_yaml(build_bootstrap(config, _gateway_options(config, asked)), comment)


def documents(config: Config, asked: Asked) -> list[Document]:
    """The Kubernetes objects of a mesh target."""
    mesh = MESHES[asked.target]
    if asked.upstreams and not mesh.routes:
        raise ConfigError(
            f"--upstream: with --target {asked.target} the routes are your own; leave it out"
        )
    if takes_jobs(config):
        raise ConfigError(
            f"jobs.via: --target {asked.target} has no way back for jobs; leave jobs.via out"
        )
    if asked.wiring != "gate" or asked.target == "envoy-gateway":
        _check_no_pool_goes_by_bodies(config, asked.target)
    upstreams = (asked.upstreams or [DEFAULT_SERVICE]) if mesh.routes else []
    options = MeshOptions(
        gateway=ObjectName.parse(asked.gateway or mesh.gateway),
        namespace=asked.namespace or DEFAULT_NAMESPACE,
        upstreams=tuple(Upstream.parse(url) for url in upstreams),
        wiring=asked.wiring,
        on_outage=asked.on_outage,
    )
    return mesh.documents(config, options)


def _check_no_pool_goes_by_bodies(config: Config, target: str) -> None:
    """Such a pool would never match: its requests would pass, or crowd another one."""
    for number, pool in enumerate(config.pools):
        if pool.match.model is not None:
            raise ConfigError(
                f"pools[{number}].match.model: --target {target} can't read bodies; "
                "match by path_prefix or host"
            )


def _gateway_options(config: Config, asked: Asked) -> GatewayOptions:
    host, grpc_port = split_host_port(config.server.grpc)
    return GatewayOptions(
        upstreams=tuple(Upstream.parse(url) for url in asked.upstreams or [DEFAULT_UPSTREAM]),
        policy_host=ANY_HOSTS.get(host, host),
        grpc_port=grpc_port,
        http_port=split_host_port(config.server.http)[1],
        wiring=asked.wiring,
        on_outage=asked.on_outage,
        node_id=asked.node or DEFAULT_NODE,
    )


def _command(asked: Asked) -> str:
    words = ["policy-server envoy-config", f"--target {asked.target}", f"--wiring {asked.wiring}"]
    words.append(f"--on-outage {asked.on_outage}")
    words += [f"--upstream {url}" for url in asked.upstreams]
    words += [f"--gateway {asked.gateway}"] if asked.gateway else []
    words += [f"--namespace {asked.namespace}"] if asked.namespace else []
    words += [f"--node '{asked.node}'"] if asked.node else []
    return " ".join(words)
