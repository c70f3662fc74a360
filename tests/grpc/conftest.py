"""A real gRPC server on a free port with a fake gate behind it, and clients that speak to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from envoy.service.accesslog.v3 import als_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc

from policy_server.adapters.access_log import AccessLog
from policy_server.adapters.ext_proc import ExtProc
from policy_server.adapters.grpc_server import GrpcServer, build_grpc_server
from policy_server.adapters.observer import AnswerObserver
from policy_server.adapters.rules import ClassifyRules
from policy_server.signals.observer import parser_for
from policy_server.signals.orca import read_report
from tests.support.fake_gate import FakeGate


@dataclass
class Wired:
    """The running pieces."""

    gate: FakeGate
    ext_proc: ExtProc
    access_log: AccessLog
    server: GrpcServer
    channel: grpc.aio.Channel

    def process(self, **metadata: str) -> grpc.aio.StreamStreamCall:
        """A new ext_proc stream, as Envoy opens it."""
        stub = ext_proc_grpc.ExternalProcessorStub(self.channel)
        return stub.Process(metadata=[(k.replace("_", "-"), v) for k, v in metadata.items()])

    def log(self, **metadata: str) -> grpc.aio.StreamUnaryCall:
        """A new access log stream."""
        stub = als_pb2_grpc.AccessLogServiceStub(self.channel)
        return stub.StreamAccessLogs(
            metadata=[(k.replace("_", "-"), v) for k, v in metadata.items()]
        )


@pytest.fixture
async def wired() -> AsyncIterator[Wired]:
    gate = FakeGate()
    observer = AnswerObserver(gate, parser_for)
    ext_proc = ExtProc(gate, ClassifyRules(), observer)
    access_log = AccessLog(gate, read_report)
    server = build_grpc_server("127.0.0.1:0", ext_proc, access_log)
    await server.start()
    handing_back = asyncio.create_task(ext_proc.hand_back_holds())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Wired(gate, ext_proc, access_log, server, channel)
    handing_back.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await handing_back
    await server.stop(0)
