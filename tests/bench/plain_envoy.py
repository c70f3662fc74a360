"""Envoys without the policy server, to compare with; and a listener that is a trivial upstream."""

from __future__ import annotations

from typing import Any

import betterproto2
from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.adaptive_concurrency.v3 import (
    AdaptiveConcurrency,
    GradientControllerConfig,
    GradientControllerConfigConcurrencyLimitCalculationParams,
    GradientControllerConfigMinimumRttCalculationParams,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.envoy.type.v3 import HttpStatus, Percent, StatusCode
from envoy_data_plane.google.protobuf import Any as Packed

from policy_server.config import load_config
from policy_server.envoy_config.clusters import upstream_cluster
from policy_server.envoy_config.options import GatewayOptions, Upstream
from policy_server.envoy_config.wire import UPSTREAM_CLUSTER, address, http_filter, seconds

GATEWAY = "gateway"
# The circuit breakers of "no control" must not be a control: above any backlog of these runs.
NO_BREAKER = {"POLICY_POOLS__0__LIMIT__MAX": "100000"}


def plain(where: dict[str, int]) -> dict[str, Any]:
    """A plain proxy: nothing decides, whatever comes is passed on."""
    return _bootstrap(where, [])


def adaptive_concurrency(where: dict[str, int]) -> dict[str, Any]:
    """Envoy's own gradient controller with the values of its documentation's example.

    Only the status of a refusal differs from the default 503: 429, as everywhere in this table.
    """
    controller = GradientControllerConfig(
        sample_aggregate_percentile=Percent(value=90),
        concurrency_limit_params=GradientControllerConfigConcurrencyLimitCalculationParams(
            concurrency_update_interval=seconds(0.1)
        ),
        min_rtt_calc_params=GradientControllerConfigMinimumRttCalculationParams(
            interval=seconds(60), request_count=50
        ),
    )
    control = AdaptiveConcurrency(
        gradient_controller_config=controller,
        concurrency_limit_exceeded_status=HttpStatus(code=StatusCode.TooManyRequests),
    )
    return _bootstrap(where, [http_filter("envoy.filters.http.adaptive_concurrency", control)])


def with_trivial_upstream(bootstrap: dict[str, Any], port: int) -> None:
    """Adds a listener that answers 200 at once."""
    answer = DirectResponseAction(status=200, body=DataSource(inline_string="ok"))
    route = Route(match=RouteMatch(prefix="/"), direct_response=answer)
    found = _listener("trivial", port, route, []).to_dict(casing=betterproto2.Casing.SNAKE)
    bootstrap["static_resources"]["listeners"].append(found)


def _bootstrap(where: dict[str, int], filters: list[HttpFilter]) -> dict[str, Any]:
    upstream = Upstream("http", "127.0.0.1", where["upstream"])
    cluster = upstream_cluster(load_config(None, NO_BREAKER), GatewayOptions(upstreams=(upstream,)))
    route = Route(
        match=RouteMatch(prefix="/"),
        route=RouteAction(cluster=UPSTREAM_CLUSTER, timeout=seconds(0)),
    )
    bootstrap = Bootstrap(
        admin=Admin(address=address("127.0.0.1", where["admin"])),
        static_resources=BootstrapStaticResources(
            listeners=[_listener(GATEWAY, where["gateway"], route, filters)], clusters=[cluster]
        ),
    )
    data: dict[str, Any] = bootstrap.to_dict(casing=betterproto2.Casing.SNAKE)
    return data


def _listener(name: str, port: int, route: Route, filters: list[HttpFilter]) -> Listener:
    host = VirtualHost(name=name, domains=["*"], routes=[route])
    manager = HttpConnectionManager(
        stat_prefix=name,
        route_config=RouteConfiguration(name=name, virtual_hosts=[host]),
        http_filters=[*filters, http_filter("envoy.filters.http.router", Router())],
        stream_idle_timeout=seconds(900),
    )
    chain = Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=Packed.pack(manager)
    )
    return Listener(
        name=name,
        address=address("127.0.0.1", port),
        filter_chains=[FilterChain(filters=[chain])],
    )
