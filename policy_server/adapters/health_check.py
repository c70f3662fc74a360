"""Asks a policy server over gRPC whether it serves: what a container's health check runs."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from policy_server.config import Config, TlsConfig, split_host_port

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class UnhealthyError(OSError):
    """It does not serve; the message says what it said instead."""


def ask_health(config: Config, address: str | None, timeout_s: float) -> str:
    """The status (`SERVING`) of the server at `address`, by default where the configuration says
    that it listens. Raises UnhealthyError."""
    host, port = split_host_port(address or config.server.grpc)
    host = LOOPBACK.get(host, host)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with _channel(where, config.server.tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            said = error.details() if isinstance(error, grpc.Call) else str(error)
            raise UnhealthyError(f"{where}: {said}; is the policy server running?") from None
    status: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise UnhealthyError(f"{where}: {status}")
    return status


def _channel(where: str, tls: TlsConfig | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(where)
    trusted = (tls.server_ca or tls.client_ca or tls.cert).read_bytes()
    key, cert = (tls.client_key or tls.key), (tls.client_cert or tls.cert)
    credentials = grpc.ssl_channel_credentials(trusted, key.read_bytes(), cert.read_bytes())
    return grpc.secure_channel(where, credentials)
