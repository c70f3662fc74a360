"""What the mesh targets share: names, places and the frame of a Kubernetes object."""

from __future__ import annotations

import re
from dataclasses import dataclass

from policy_server.config import Config, split_host_port
from policy_server.config_source import ConfigError
from policy_server.envoy_config.options import GatewayOptions, OnOutage, Upstream, Wiring
from policy_server.envoy_config.plain import Document

POLICY_SERVER = "policy-server"
"""The name of the Service, and of every object that is made here."""
DEFAULT_NAMESPACE = "policy"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A namespaced name."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, value: str) -> ObjectName:
        """`namespace/name`; ConfigError when it has another shape."""
        namespace, slash, name = value.partition("/")
        if not slash or not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"--gateway {value!r}: not NAMESPACE/NAME; write for example default/eg"
            )
        return cls(namespace, name)


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """One gateway of a mesh. `namespace` is where the policy server's Service lives."""

    gateway: ObjectName
    namespace: str = DEFAULT_NAMESPACE
    upstreams: tuple[Upstream, ...] = ()
    wiring: Wiring = "gate"
    on_outage: OnOutage = "closed"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.namespace):
            raise ConfigError(f"--namespace {self.namespace!r}: not the name of a namespace")

    @property
    def policy_host(self) -> str:
        """The Service's name in the cluster's DNS."""
        return f"{POLICY_SERVER}.{self.namespace}.svc.cluster.local"


def grpc_port(config: Config) -> int:
    """The port of the Service for Envoy: the number that the server listens on."""
    return split_host_port(config.server.grpc)[1]


def envoy_options(config: Config, options: MeshOptions, node_id: str) -> GatewayOptions:
    """The same for the builders of Envoy's own messages. They make filters, logs and the policy
    server's cluster here; listener and routes are the mesh's."""
    return GatewayOptions(
        upstreams=options.upstreams or (Upstream("http", "unused", 80),),
        policy_host=options.policy_host,
        grpc_port=grpc_port(config),
        http_port=split_host_port(config.server.http)[1],
        wiring=options.wiring,
        on_outage=options.on_outage,
        node_id=node_id,
    )


def kubernetes_object(api_version: str, kind: str, where: ObjectName, spec: Document) -> Document:
    """One object."""
    metadata = {"name": where.name, "namespace": where.namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def refuse_tls_files(config: Config, instead: str) -> None:
    """Certificates of a cluster that the mesh builds are not files of ours."""
    if config.server.tls is not None:
        raise ConfigError(
            f"server.tls: this target can't take certificate files; {instead}, and generate from "
            "a configuration without server.tls"
        )
