"""A real gRPC server on a free port with a fake gate behind it, and clients that speak to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from envoy.service.accesslog.v3 import als_pb2_grpc
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc

from policy_server.adapters.access_log import AccessLog
from policy_server.adapters.desk import Desk
from policy_server.adapters.grpc_server import GrpcServer, Services, build_grpc_server
from tests.support.fake_gate import FakeGate
from tests.support.services import services_of


@dataclass
class Wired:
    """The running pieces."""

    gate: FakeGate
    desk: Desk
    services: Services
    access_log: AccessLog
    server: GrpcServer
    channel: grpc.aio.Channel

    def process(self, **metadata: str) -> grpc.aio.StreamStreamCall:
        """A new ext_proc stream, as Envoy opens it."""
        stub = ext_proc_grpc.ExternalProcessorStub(self.channel)
        return stub.Process(metadata=[(k.replace("_", "-"), v) for k, v in metadata.items()])

    def check(
        self, message: external_auth_pb2.CheckRequest, timeout: float | None = None
    ) -> grpc.aio.UnaryUnaryCall:
        """A Check, as Envoy asks."""
        stub = external_auth_pb2_grpc.AuthorizationStub(self.channel)
        return stub.Check(message, timeout=timeout, metadata=[("x-policy-node", "envoy-1")])

    def log(self, **metadata: str) -> grpc.aio.StreamUnaryCall:
        """A new access log stream."""
        stub = als_pb2_grpc.AccessLogServiceStub(self.channel)
        return stub.StreamAccessLogs(
            metadata=[(k.replace("_", "-"), v) for k, v in metadata.items()]
        )


@pytest.fixture
async def wired() -> AsyncIterator[Wired]:
    gate = FakeGate()
    desk, services = services_of(gate)
    server = build_grpc_server("127.0.0.1:0", services)
    await server.start()
    handing_back = asyncio.create_task(desk.hand_back_holds())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Wired(gate, desk, services, services.access_log, server, channel)
    handing_back.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await handing_back
    await server.stop(0)
