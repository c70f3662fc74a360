"""Reading and ending a gRPC stream, whatever state the call is in."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs miss it

Context = grpc.aio.ServicerContext[bytes, bytes]

NODE_KEY = "x-policy-node"
"""gRPC metadata: which Envoy a call comes from."""


async def read(context: Context) -> bytes | None:
    """The next message; None when there will be none: EOF, call over, server stopped."""
    try:
        raw = await context.read()
    except grpc.aio.BaseError:
        return None
    return None if raw is EOF else raw


async def end(context: Context, code: grpc.StatusCode, details: str) -> NoReturn:
    """End the stream without an answer, quietly when the call is dead already."""
    try:
        await context.abort(code, details)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None


def metadata_value(context: Context, name: str) -> str:
    """The first value that the caller's gRPC metadata has under `name`, "" when none."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return str(value)
    return ""
