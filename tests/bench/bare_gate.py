"""The least that can stand behind this Envoy: `python -m tests.bench.bare_gate PORT`.

A grpc.aio server on the gate's wiring whose answer is one constant and that reads log entries
only to throw them away. What the policy server costs beyond it is its own doing.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import uvloop
from envoy.service.ext_proc.v3.external_processor_pb2 import (  # type: ignore[attr-defined]
    ProcessingResponse,
)

from policy_server.adapters.grpc_server import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE, OPTIONS

Context = grpc.aio.ServicerContext[Any, Any]


def admission() -> bytes:
    """What the policy server says to a request that may go at once, unobserved."""
    response = ProcessingResponse()
    option = response.request_headers.response.header_mutation.set_headers.add()
    option.header.key, option.header.raw_value = "x-policy-observe", b"0"
    answer = {"queue_wait_ms": 0, "class": "P1", "pool": "default"}
    response.dynamic_metadata.update({"policy": answer})
    return bytes(response.SerializeToString())


ANSWER = admission()


async def decide(_messages: object, context: Context) -> bytes:
    """Every request goes."""
    await context.read()
    return ANSWER


async def read_log(_messages: object, context: Context) -> bytes:
    """Every entry is thrown away."""
    while isinstance(await context.read(), bytes):
        pass
    return b""


async def serve(port: int) -> None:
    """Until killed."""
    server = grpc.aio.server(options=OPTIONS)
    for service, method, handler in (
        (EXT_PROC_SERVICE, "Process", decide),
        (ACCESS_LOG_SERVICE, "StreamAccessLogs", read_log),
    ):
        handlers = {method: grpc.stream_unary_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
