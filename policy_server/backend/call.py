"""A sequence of the engine that belongs to an HTTP request and writes its own bytes.

Tokens go straight from the engine's tick into the socket: the request's task sleeps from the
response headers to the end, so a step wakes no task. A slow reader costs memory up to the length
of its answer, never time.
"""

from __future__ import annotations

import asyncio

from policy_server.backend.answers import Frames
from policy_server.backend.engine import Sequence


class Call(Sequence):
    """`frames` and `transport` are set for a streamed answer; `done` resolves at its end."""

    __slots__ = ("done", "frames", "transport")

    def __init__(self, prompt_tokens: int, max_tokens: int, done: asyncio.Future[None]) -> None:
        super().__init__(prompt_tokens, max_tokens)
        self.done = done
        self.frames: Frames | None = None
        self.transport: asyncio.WriteTransport | None = None

    def stream_to(self, transport: asyncio.WriteTransport, frames: Frames) -> None:
        """Write each token to `transport` as it comes."""
        self.transport = transport
        self.frames = frames

    def emit(self) -> None:
        """The engine has made one more token (or the only result there is)."""
        finished = self.generated >= self.max_tokens
        if self.frames is not None and self.transport is not None:
            self._write(self.frames, self.transport, finished)
        if finished and not self.done.done():
            self.done.set_result(None)

    def _write(self, frames: Frames, transport: asyncio.WriteTransport, finished: bool) -> None:
        if transport.is_closing():
            return
        data = frames.last if finished else frames.token
        transport.write(frames.first + data if self.generated == 1 else data)
