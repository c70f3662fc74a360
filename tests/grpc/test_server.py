"""The gRPC port itself: health, reflection, ports, TLS."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from policy_server.adapters.grpc_server import (
    SERVICES,
    GrpcServer,
    PortTakenError,
    ServerTls,
    build_grpc_server,
)
from tests.grpc.conftest import Wired
from tests.support.fake_gate import FakeGate
from tests.support.services import services_of

TLS = Path(__file__).parent.parent / "support" / "tls"
SERVING = health_pb2.HealthCheckResponse.SERVING


def server_at(address: str, tls: ServerTls | None = None) -> GrpcServer:
    return build_grpc_server(address, services_of(FakeGate())[1], tls)


@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_health_is_told_per_service(wired: Wired, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(wired.channel)
    request = health_pb2.HealthCheckRequest(service=service)
    assert (await stub.Check(request)).status == SERVING
    await wired.server.stop_accepting()
    assert (await stub.Check(request)).status != SERVING


async def test_tools_can_ask_what_is_served(wired: Wired) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(wired.channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names
    await call.done_writing()


async def test_a_port_that_is_taken_is_told_in_one_line(wired: Wired) -> None:
    with pytest.raises(PortTakenError, match="cannot listen on"):
        server_at(f"127.0.0.1:{wired.server.port}")


async def test_without_the_right_certificate_there_is_no_call() -> None:
    ca_file, cert_file, key_file = TLS / "ca.pem", TLS / "localhost.pem", TLS / "localhost.key"
    server = server_at("127.0.0.1:0", ServerTls(cert_file, key_file, client_ca=ca_file))
    await server.start()
    ca, cert, key = (file.read_bytes() for file in (ca_file, cert_file, key_file))
    target = f"localhost:{server.port}"
    known = grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=cert)
    async with grpc.aio.secure_channel(target, known) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
    async with grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(ca)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    await server.stop(0)
