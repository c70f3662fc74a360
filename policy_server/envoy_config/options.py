"""What the gateway operator chooses, apart from the configuration file: upstreams and ports."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from policy_server.config_source import ConfigError

Wiring = Literal["gate", "authz", "stream"]
OnOutage = Literal["closed", "open"]

# Requests per second that reach the gate. One policy server process decides a little more than
# this on one core; what is above is refused by Envoy itself, at a thousandth of the cost.
DEFAULT_GATE_RATE_PER_S = 2000
MAX_GATE_RATE_PER_S = 1_000_000
"""Far above what a gate can take, and Envoy's buckets count in 32 bits."""
UPSTREAM_CLUSTER = "upstream"
DEFAULT_NODE = "policy-gateway"
DEFAULT_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"
_DEFAULT_PORTS = {"http": 80, "https": 443, "h2c": 80, "grpc": 80}


@dataclass(frozen=True, slots=True)
class Upstream:
    """One model server: `http`, `https` or `h2c` (HTTP/2 without TLS, for gRPC)."""

    scheme: str
    host: str
    port: int

    @property
    def is_ip(self) -> bool:
        """Whether `host` is an address, so that there is no name for DNS, SNI or Host."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @classmethod
    def parse(cls, url: str) -> Upstream:
        """`scheme://host[:port]`; ConfigError when it has another shape."""
        fix = "write for example http://127.0.0.1:8000 or https://models.example.com"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"--upstream {url!r}: not a URL; {fix}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0:
            raise ConfigError(f"--upstream {url!r}: not a URL of http, https or h2c; {fix}")
        if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
            raise ConfigError(
                f"--upstream {url!r}: only scheme, host and port count, paths come from the "
                f"clients; {fix}"
            )
        scheme = "h2c" if parts.scheme == "grpc" else parts.scheme
        return cls(scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme])


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """One gateway. Several upstreams are one balanced pool and share a scheme.

    `policy_host` is where Envoy finds the policy server (the bind address may be 0.0.0.0).
    `node_id` is what Envoy calls itself, a name or a formatter of Envoy's that makes one.
    `memory_bytes`: what the machine that Envoy will run on has, 0 = not known.
    """

    upstreams: tuple[Upstream, ...]
    host: str = "0.0.0.0"  # noqa: S104 - a gateway is there to be reached
    port: int = 10000
    policy_host: str = "127.0.0.1"
    grpc_port: int = 9002
    http_port: int = 9003
    admin_port: int = 9901
    wiring: Wiring = "gate"
    on_outage: OnOutage = "closed"
    tls_cert: str | None = None
    tls_key: str | None = None
    upstream_ca: str = DEFAULT_CA_FILE
    gate_rate_per_s: int = DEFAULT_GATE_RATE_PER_S
    node_id: str = DEFAULT_NODE
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        schemes = sorted({upstream.scheme for upstream in self.upstreams})
        if not schemes:
            raise ConfigError("no upstream: add --upstream http://host:port")
        if len(schemes) > 1:
            raise ConfigError(
                f"upstreams of one pool mix {' and '.join(schemes)}; give all of them one scheme"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together; give both or none")
        if self.gate_rate_per_s < 1:
            raise ConfigError("the gate's rate must be at least 1 request per second")
        if self.gate_rate_per_s > MAX_GATE_RATE_PER_S:
            raise ConfigError(
                f"the gate's rate must be at most {MAX_GATE_RATE_PER_S} requests per second"
            )
