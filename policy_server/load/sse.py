"""Reads a streamed answer as cheaply as a correct reader can.

Two moments matter: the first chunk with content, and the end. In between nobody needs to know, so
the reading task sleeps while the body buffers and looks in once per LOOK_EVERY_S to keep the
buffer small. Waking it for every token would triple the cost of the load generator.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import StreamReader

LOOK_EVERY_S = 1.0
READ_BUFFER_BYTES = 1 << 20
"""aiohttp stops reading the socket above twice this: several seconds of the fastest stream."""

TAIL_BYTES = 2048
"""Enough for the usage chunk and the end marker."""

_END_MARKS = (b"data: [DONE]", b'"type":"message_stop"', b'"type": "message_stop"')
_CONTENT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)"\s*:\s*"[^"]')
_TOKENS = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
_ERROR = re.compile(rb'data:\s*\{"(?:error"|type"\s*:\s*"error")')


@dataclass(slots=True)
class Stream:
    """What a stream showed. `first_content` is a moment on the caller's clock, None = never.

    `complete`: the end marker came and no error chunk; `tokens`: from `usage`, else data chunks.
    """

    first_content: float | None = None
    chunks: int = 0
    complete: bool = False
    tokens: int = 0


async def read_stream(content: StreamReader, stream: Stream, clock: Callable[[], float]) -> None:
    """Read to the end, filling `stream` as it goes. Raises what aiohttp raises when it breaks."""
    tail = await _until_content(content, stream, clock)
    failed = _ERROR.search(tail) is not None
    while not content.at_eof():
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await content.wait_eof()
        except TimeoutError:
            pass
        data = content.read_nowait()
        stream.chunks += data.count(b"data:")
        tail = (tail + data)[-TAIL_BYTES:]
        failed = failed or _ERROR.search(tail) is not None
    stream.complete = not failed and any(mark in tail for mark in _END_MARKS)
    stream.tokens = tokens_of(tail) or stream.chunks


def tokens_of(data: bytes) -> int:
    """Output tokens that the last `usage` in `data` tells; 0 = none there."""
    found = _TOKENS.findall(data)
    return int(found[-1]) if found else 0


async def _until_content(
    content: StreamReader, stream: Stream, clock: Callable[[], float]
) -> bytes:
    tail = b""
    while stream.first_content is None and not content.at_eof():
        data = await content.readany()
        stream.chunks += data.count(b"data:")
        tail = (tail + data)[-TAIL_BYTES:]
        if _CONTENT.search(tail):
            stream.first_content = clock()
    return tail
