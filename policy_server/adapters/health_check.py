"""Asks a policy server over gRPC whether it serves: what a container's health check runs.

Under TLS it is asked for by the name that its own certificate bears: it is reached over loopback,
which few certificates name.
"""

from __future__ import annotations

from pathlib import Path

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID
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
            hint = "" if config.server.tls else " If it wants TLS, name its --config."
            ask = f"is the policy server running?{hint}"
            raise UnhealthyError(f"{where}: {said}; {ask}") from None
    status: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise UnhealthyError(f"{where}: {status}")
    return status


def _channel(where: str, tls: TlsConfig | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(where)
    own = tls.cert.read_bytes()
    trusted = [file.read_bytes() for file in (tls.server_ca, tls.client_ca) if file is not None]
    key, cert = (tls.client_key or tls.key), (tls.client_cert or tls.cert)
    credentials = grpc.ssl_channel_credentials(
        b"\n".join([*trusted, own]), key.read_bytes(), cert.read_bytes()
    )
    options = (("grpc.ssl_target_name_override", _name(tls.cert, own)),)
    return grpc.secure_channel(where, credentials, options)


def _name(file: Path, pem: bytes) -> str:
    """One that the certificate is good for."""
    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = names.get_values_for_type(x509.DNSName)
        addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    except x509.ExtensionNotFound:
        common = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        hosts, addresses = [str(one.value) for one in common], []
    except ValueError:
        raise UnhealthyError(f"server.tls.cert: {file} is no certificate in PEM") from None
    for name in hosts + addresses:
        return name.replace("*", "any", 1)
    raise UnhealthyError(
        f"server.tls.cert: {file} names neither a host nor an address, so no gRPC client can "
        "check it; add a DNS name to it"
    )
