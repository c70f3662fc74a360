"""A tiny policy server that does what each request's `x-test` header says, and writes all down.

It stands in for the real one where a test is about Envoy's side alone. Words in `x-test`:
`observe` (set x-policy-observe: 1), `shed` (429), `unavailable` (503), `hold` (until released).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc


def headers_of(message: object) -> dict[str, str]:
    """The headers of an HttpHeaders message."""
    return {h.key: h.raw_value.decode() or h.value for h in message.headers.headers}  # type: ignore[attr-defined]


@dataclass
class Seen:
    """Everything that arrived."""

    gate: list[ext_proc.ProcessingRequest] = field(default_factory=list)
    gate_metadata: list[dict[str, str]] = field(default_factory=list)
    observed: dict[str, list[ext_proc.ProcessingRequest]] = field(default_factory=dict)
    entries: list[object] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: object, timeout_s: float = 15) -> None:
        """Waits until `condition()` holds, looking again whenever something arrives."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # type: ignore[operator]
                self.changed.clear()
                await self.changed.wait()

    def entry_uids(self) -> list[str]:
        """The uid of each access log entry, in order."""
        facts = [e.common_properties.metadata.filter_metadata for e in self.entries]  # type: ignore[attr-defined]
        return [of["policy.request"].fields["uid"].string_value for of in facts]


class ScriptedPolicy(
    ext_proc_grpc.ExternalProcessorServicer, als_pb2_grpc.AccessLogServiceServicer
):
    """The gRPC services; `seen` is what they saw, `release` ends the holds."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.release = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int, credentials: grpc.ServerCredentials | None = None) -> None:
        """Serves on 127.0.0.1:port."""
        self._server = grpc.aio.server()
        ext_proc_grpc.add_ExternalProcessorServicer_to_server(self, self._server)
        als_pb2_grpc.add_AccessLogServiceServicer_to_server(self, self._server)
        if credentials is None:
            self._server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
        await self._server.start()

    async def stop(self) -> None:
        """Stops at once, as a crash would."""
        if self._server is not None:
            await self._server.stop(0)

    async def Process(
        self, requests: AsyncIterator[ext_proc.ProcessingRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ext_proc.ProcessingResponse]:
        metadata = {k: str(v) for k, v in context.invocation_metadata() or ()}
        async for message in requests:
            if message.observability_mode:
                self.seen.observed.setdefault(metadata["x-policy-uid"], []).append(message)
                self.seen.changed.set()
                continue
            self.seen.gate.append(message)
            self.seen.gate_metadata.append(metadata)
            self.seen.changed.set()
            yield await self._answer(headers_of(message.request_headers).get("x-test", ""))

    async def _answer(self, script: str) -> ext_proc.ProcessingResponse:
        if "hold" in script:
            await self.release.wait()
        response = ext_proc.ProcessingResponse()
        if "shed" in script or "unavailable" in script:
            immediate = response.immediate_response
            immediate.status.code = 429 if "shed" in script else 503
            immediate.body, immediate.details = b'{"mine": true}', "policy_room_full"
            _set(immediate.headers, "x-policy-reason", "room_full")
            _set(immediate.headers, "x-envoy-ratelimited", "true")
            return response
        mutation = response.request_headers.response.header_mutation
        _set(mutation, "x-policy-observe", "1" if "observe" in script else "0")
        if "passed" not in script:
            fields = response.dynamic_metadata.fields["policy"].struct_value.fields
            fields["queue_wait_ms"].number_value = 12
            fields["class"].string_value = "P1"
        return response

    async def StreamAccessLogs(
        self, requests: AsyncIterator[als_pb2.StreamAccessLogsMessage], _: grpc.aio.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        async for message in requests:
            self.seen.entries += message.http_logs.log_entry
            self.seen.changed.set()
        return als_pb2.StreamAccessLogsResponse()


def _set(mutation: object, key: str, value: str) -> None:
    option = mutation.set_headers.add()  # type: ignore[attr-defined]
    option.header.key, option.header.raw_value = key, value.encode()
