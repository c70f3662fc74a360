"""An upstream that drips tokens: `python -m tests.bench.drip PORT TOKENS PER_S`.

Every POST gets a stream of TOKENS events, PER_S a second, each in a chunk of its own as an engine
writes them. No engine and no HTTP library: 15,000 chunks a second for a fraction of a core, so
that the machine is left to what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

PHASES = 10
"""Parts of the streams that get their token at the same moment; real streams do not march."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def frame() -> bytes:
    """One token of a chat completion, as vLLM sends it, in a chunk."""
    choice = {"index": 0, "delta": {"content": " tok"}, "logprobs": None, "finish_reason": None}
    event = {
        "id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": "m",
        "choices": [choice],
    }  # fmt: skip
    data = f"data: {json.dumps(event)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


class Stream(asyncio.Protocol):
    """One connection; a request at a time."""

    def __init__(self, dripping: dict[Stream, None]) -> None:
        self.left = 0
        self._dripping = dripping
        self._data = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if found and len(body) >= int(length or b"0"):
            self._data = b""
            self.left = TOKENS
            self.transport.write(HEAD)
            self._dripping[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._dripping.pop(self, None)

    def drip(self, token: bytes) -> None:
        """The next token, with the end after the last."""
        self.left -= 1
        self.transport.write(token if self.left else token + END)
        if not self.left:
            del self._dripping[self]


TOKENS = 0


async def serve(port: int, per_s: float) -> None:
    """Until killed."""
    loop = asyncio.get_running_loop()
    phases: list[dict[Stream, None]] = [{} for _ in range(PHASES)]
    made = 0

    def connected() -> Stream:
        nonlocal made
        made += 1
        return Stream(phases[made % PHASES])

    await loop.create_server(connected, "127.0.0.1", port, backlog=1024)
    token, due, turn = frame(), loop.time(), 0
    while True:
        for stream in list(phases[turn % PHASES]):
            stream.drip(token)
        turn += 1
        due += 1 / per_s / PHASES
        await asyncio.sleep(max(0.0, due - loop.time()))


if __name__ == "__main__":
    TOKENS = int(sys.argv[2])
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[3])))
