"""The ext_authz wiring: a unary Check that waits, and the access log that ends the leases.

For meshes that know ext_authz only. There is no observer: the limit has the log's times and the
load reports of the engines to go by.

Re-sending after a crash works as with the gate, with one difference. Envoy takes the back-off's
`max_interval` for the time-out of each try of a unary call, so it stands above the longest hold,
and the back-off, which doubles from 0.1 s, is in practice not capped: after an outage of T
seconds most requests are back within 2 T, the last ones later.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    BackoffStrategy,
    RetryPolicy,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_authz.v3 import (
    BufferSettings,
    CheckSettings,
    ExtAuthz,
    ExtAuthzPerRoute,
)
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode

from policy_server.config import Config
from policy_server.config_jobs import takes_jobs
from policy_server.envoy_config.access_log import access_logs
from policy_server.envoy_config.options import GatewayOptions, OnOutage
from policy_server.envoy_config.request_facts import REQUEST_NAMESPACE
from policy_server.envoy_config.wire import (
    UPSTREAM_CLUSTER,
    http_filter,
    policy_grpc,
    seconds,
)
from policy_server.envoy_config.wirings import (
    ANSWER_MARGIN_S,
    ANSWER_NAMESPACE,
    GATE,
    Wired,
    forwarded_metadata,
)

# Where Envoy puts what a Check says of its answer, whatever the filter is called.
EXT_AUTHZ_NAMESPACE = "envoy.filters.http.ext_authz"
FIRST_PAUSE_S = 0.1
# Waits are drawn from 0 to a back-off that doubles: eleven tries take 90 s on average. Open: three
# take 0.35 s, 0.7 s at most.
TRIES_CLOSED, TRIES_OPEN = 11, 3
OUTAGE_CLOSED_S, OUTAGE_OPEN_S = 75.0, 1.0


def wired(config: Config, options: GatewayOptions) -> Wired:
    """The Check and the log."""
    where = {"route": "governed", "cluster": UPSTREAM_CLUSTER}
    held = CheckSettings(
        context_extensions=where, disable_request_body_buffering=takes_jobs(config)
    )
    jobs = CheckSettings(context_extensions=where, with_request_body=_whole_body(config))
    return Wired(
        filters=[http_filter(GATE, _check(config, options), disabled=True)],
        governed={GATE: ExtAuthzPerRoute(check_settings=held)},
        access_logs=access_logs(options, (EXT_AUTHZ_NAMESPACE, ANSWER_NAMESPACE, "class")),
        jobs=ExtAuthzPerRoute(check_settings=jobs),
    )


def _whole_body(config: Config) -> BufferSettings:
    """What fits into a job. Of a larger body a part comes, so that the policy server and not Envoy
    says what is wrong with it."""
    return BufferSettings(
        max_request_bytes=int(config.jobs.max_body), allow_partial_message=True, pack_as_bytes=True
    )


def ask_again(config: Config, on_outage: OnOutage) -> RetryPolicy:
    """How Envoy repeats a Check after a crash; one try lasts as long as the longest hold."""
    return RetryPolicy(
        retry_on="unavailable,reset,connect-failure,cancelled,internal",
        num_retries=TRIES_CLOSED if on_outage == "closed" else TRIES_OPEN,
        retry_back_off=BackoffStrategy(
            base_interval=seconds(FIRST_PAUSE_S), max_interval=seconds(one_try_s(config))
        ),
    )


def one_try_s(config: Config) -> float:
    """The time-out of a Check that is asked once, seconds."""
    return config.longest_hold_s + ANSWER_MARGIN_S


def all_tries_s(config: Config, on_outage: OnOutage) -> float:
    """The time-out of a Check with all that `ask_again` repeats, seconds."""
    return one_try_s(config) + (OUTAGE_CLOSED_S if on_outage == "closed" else OUTAGE_OPEN_S)


def _check(config: Config, options: GatewayOptions) -> ExtAuthz:
    service = policy_grpc(options.node_id)
    service.timeout = seconds(all_tries_s(config, options.on_outage))
    service.retry_policy = ask_again(config, options.on_outage)
    return ExtAuthz(
        grpc_service=service,
        transport_api_version=ApiVersion.V3,
        failure_mode_allow=options.on_outage == "open",
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        # Only here is `pack_as_bytes` heard; what is held comes without its body (see the routes).
        with_request_body=_whole_body(config) if takes_jobs(config) else None,
        metadata_context_namespaces=forwarded_metadata(config, REQUEST_NAMESPACE),
        stat_prefix="gate",
    )
