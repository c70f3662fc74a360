"""The gRPC port: services, health, reflection, and the options that Envoy's habits ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from policy_server.adapters.access_log import AccessLog
from policy_server.adapters.ext_authz import ExtAuthz
from policy_server.adapters.ext_proc import ExtProc
from policy_server.adapters.ext_proc_dialogue import GateJobs
from policy_server.adapters.ext_proc_stream import WIRING_KEY, SingleStream
from policy_server.adapters.keda import KedaScaler
from policy_server.adapters.keda_messages import SERVICE as KEDA_SERVICE
from policy_server.adapters.keda_messages import register
from policy_server.adapters.streams import NODE_KEY
from policy_server.core.leases import MAX_NODES

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_AUTHZ_SERVICE = "envoy.service.auth.v3.Authorization"
ACCESS_LOG_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
SERVICES = (EXT_PROC_SERVICE, EXT_AUTHZ_SERVICE, ACCESS_LOG_SERVICE, KEDA_SERVICE)
PROCESS = f"/{EXT_PROC_SERVICE}/Process"
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
MESSAGE_MARGIN_BYTES = 1024 * 1024
"""For what stands around the body of a job."""
MAX_PENDING = 200_000

OPTIONS: tuple[tuple[str, int], ...] = (
    # A burst after a restart is thousands of streams at once; the default refuses past 1,000.
    ("grpc.server.max_pending_requests", MAX_PENDING),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
    # Envoy's keepalive pings on a connection full of silent holds are no abuse.
    ("grpc.http2.max_ping_strikes", 0),
    # Two processes on one port would share connections, and one of them may not be serving.
    ("grpc.so_reuseport", 0),
)
"""No `max_concurrent_streams`: a refused stream is a 500 for its client."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files. With `client_ca`, callers must show a certificate that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """What grpc wants; OSError when a file cannot be read."""
        ca = self.client_ca.read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.cert.read_bytes())],
            root_certificates=ca,
            require_client_auth=ca is not None,
        )


class PortTakenError(OSError):
    """The address cannot be listened on."""


class GrpcServer:
    """The running port. `add_generic_rpc_handlers` of `raw` takes further services."""

    def __init__(self, raw: grpc.aio.Server, health: health_aio.HealthServicer, port: int) -> None:
        self.raw = raw
        self.port = port
        self._health = health

    async def start(self) -> None:
        """Serve, and say so to health checks."""
        await self.raw.start()
        for service in ("", *SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop_accepting(self) -> None:
        """Tell health checks that new streams should go elsewhere; what is open goes on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """End: open streams get `grace_s` seconds, then they are cut."""
        await self.stop_accepting()
        await self.raw.stop(grace_s)


@dataclass(frozen=True, slots=True)
class Services:
    """What the port offers: every wiring at once, so that Envoys of different kinds may share it.

    `streams_by_default`: ext_proc streams that do not say their wiring are single streams, for
    Envoys that can't be told to say it.
    """

    gate: ExtProc
    jobs: GateJobs
    stream: SingleStream
    authz: ExtAuthz
    access_log: AccessLog
    keda: KedaScaler
    streams_by_default: bool = False


def build_grpc_server(
    address: str,
    services: Services,
    tls: ServerTls | None = None,
    max_body: int = 0,
) -> GrpcServer:
    """A server bound to `address` (host:port, port 0 = any); raises PortTakenError. `max_body`:
    the largest body of a job, bytes.

    Nothing is served before `start`.
    """
    largest = max(MAX_MESSAGE_BYTES, max_body + MESSAGE_MARGIN_BYTES)
    limit = ("grpc.max_receive_message_length", largest)
    server = grpc.aio.server(options=(*OPTIONS, limit))
    server.add_generic_rpc_handlers(_handlers(services))
    servicer = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    names = (*SERVICES, health.SERVICE_NAME)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.credentials())
    except RuntimeError as error:
        raise PortTakenError(f"cannot listen on {address}: {error}") from None
    return GrpcServer(server, servicer, port)


class _ByWiring(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no generic at run time
    """ext_proc's one method, which three kinds of streams use: the gate's end with their answer
    (and are cheaper as stream-in, unary-out), those of its job route may ask for the body first,
    single streams go on to the end of the response.

    What a gate's stream says of itself is read here, once for all streams that say the same: to
    read it again in the handler costs 3 µs."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._any_gate = grpc.stream_unary_rpc_method_handler(services.gate.process)
        self._gates: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # by node, MAX_NODES at most
        self._stream = grpc.stream_stream_rpc_method_handler(services.stream.process)
        jobs = grpc.stream_stream_rpc_method_handler(services.jobs.process)
        self._kinds: dict[object, grpc.RpcMethodHandler[Any, Any]] = {
            "stream": self._stream,
            "jobs": jobs,
        }
        self._default = self._stream if services.streams_by_default else None

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler for one stream, by what its Envoy says of its wiring."""
        if handler_call_details.method != PROCESS:
            return None
        node, chosen = "", self._default
        for key, value in handler_call_details.invocation_metadata:
            if key == NODE_KEY:
                node = node or str(value)
            elif key == WIRING_KEY:
                chosen = self._kinds.get(value)
        return chosen or self._gates.get(node) or self._gate(node)

    def _gate(self, node: str) -> grpc.RpcMethodHandler[Any, Any]:
        if len(self._gates) >= MAX_NODES:
            return self._any_gate
        gate = grpc.stream_unary_rpc_method_handler(self._services.gate.of(node).process)
        self._gates[node] = gate
        return gate


def _handlers(services: Services) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """All methods take and give raw bytes, see `ext_proc` for the reason and the kind."""
    check = grpc.unary_unary_rpc_method_handler(services.authz.check)
    stream = grpc.stream_unary_rpc_method_handler(services.access_log.stream)
    return (
        _ByWiring(services),
        grpc.method_handlers_generic_handler(EXT_AUTHZ_SERVICE, {"Check": check}),
        grpc.method_handlers_generic_handler(KEDA_SERVICE, _keda(services.keda)),
        grpc.method_handlers_generic_handler(ACCESS_LOG_SERVICE, {"StreamAccessLogs": stream}),
    )


def _keda(scaler: KedaScaler) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    register()  # for reflection
    return {
        "IsActive": grpc.unary_unary_rpc_method_handler(scaler.is_active),
        "StreamIsActive": grpc.unary_stream_rpc_method_handler(scaler.stream_is_active),
        "GetMetricSpec": grpc.unary_unary_rpc_method_handler(scaler.get_metric_spec),
        "GetMetrics": grpc.unary_unary_rpc_method_handler(scaler.get_metrics),
    }
