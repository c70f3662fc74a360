"""The least that can stand behind this Envoy: `python -m tests.bench.bare_gate PORT`.

A grpc.aio server on the gate's wiring whose answer is one constant and that reads log entries
only to throw them away. What the policy server costs beyond it is its own doing.
"""

from __future__ import annotations

import sys

import grpc
import uvloop

from policy_server.adapters.ext_proc_messages import Go, GoAnswers
from policy_server.adapters.grpc_server import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE, OPTIONS
from policy_server.adapters.streams import Context, read
from policy_server.core.request import Priority

ANSWER = GoAnswers(frozenset()).of(Go("default", Priority.P1, observe=False))


async def decide(_messages: object, context: Context) -> bytes:
    """Every request goes."""
    await read(context)
    return ANSWER


async def read_log(_messages: object, context: Context) -> bytes:
    """Every entry is thrown away."""
    while await read(context) is not None:
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
