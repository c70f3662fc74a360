"""What `policy-server envoy-config` prints, and what is checked in under envoy/."""

from __future__ import annotations

from collections.abc import Sequence

from policy_server.config import Config, split_host_port
from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.options import GatewayOptions, OnOutage, Upstream, Wiring
from policy_server.envoy_config.plain import to_yaml

ANY_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def render(
    config: Config, upstreams: Sequence[str], on_outage: OnOutage, wiring: Wiring = "gate"
) -> str:
    """The bootstrap as YAML, under a comment that says how it was made."""
    host, grpc_port = split_host_port(config.server.grpc)
    options = GatewayOptions(
        upstreams=tuple(Upstream.parse(url) for url in upstreams),
        policy_host=ANY_HOSTS.get(host, host),
        grpc_port=grpc_port,
        http_port=split_host_port(config.server.http)[1],
        wiring=wiring,
        on_outage=on_outage,
    )
    named = " ".join(f"--upstream {url}" for url in upstreams)
    return to_yaml(
        build_bootstrap(config, options),
        "Generated, do not edit. Made by:\n"
        f"policy-server envoy-config --target bootstrap --wiring {wiring} --on-outage {on_outage} "
        f"{named}",
    )
