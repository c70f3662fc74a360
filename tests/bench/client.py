"""A minimal HTTP/1.1 client: thousands of connections for a few percent of a core.

It reads what the benches need (status, headers, content-length bodies) and calls anything else a
broken answer. One connection carries one request at a time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast
from urllib.parse import urlsplit

from policy_server.load.refusal import faults

PATH = "/v1/chat/completions"
AT_ONCE = 200
"""Connections opened at the same moment: below every listen backlog."""

COME_AGAIN_S = 1.0
FEW = 10
"""Clients that arrive together: nothing that a loop would notice."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Status 0 = the connection ended without one."""

    status: int
    headers: Mapping[str, str]


BROKEN = Reply(0, {})
ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)
OnReply = Callable[["Connection", Reply], None]


class Connection(asyncio.Protocol):
    """One connection; `on_reply` is called once for every request sent."""

    def __init__(self, on_reply: OnReply) -> None:
        self.on_reply = on_reply
        self.tag: str = ""
        self.sent_at = 0.0
        self.open = False
        self._busy = False
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True

    def send(self, request: bytes) -> None:
        """Send one request; only when none is under way."""
        assert self._transport is not None
        assert not self._busy
        self._busy = True
        if self.open:
            self._transport.write(request)
        else:
            self._end(BROKEN)

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        reply, length = _read_head(head)
        if len(rest) >= length:
            self._data = b""
            self.open = self.open and reply.headers.get("connection") != "close"
            self._end(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._busy:
            self._end(BROKEN)

    def close(self) -> None:
        """Leave."""
        self._busy = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reply: Reply) -> None:
        self._busy = False
        self.on_reply(self, reply)


def _read_head(head: bytes) -> tuple[Reply, int]:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    length = headers.get("content-length")
    if length is None:
        return BROKEN, 0
    return Reply(int(first.split(" ", 2)[1]), headers), int(length)


def request(priority: str = "", tokens: int = 1, *, stream: bool = False, **headers: str) -> bytes:
    """A chat completion as bytes; without tokens it has no body."""
    messages = [{"role": "user", "content": "hello"}]
    ask = {"model": "m", "messages": messages, "max_tokens": tokens, "stream": stream}
    body = json.dumps(ask).encode() if tokens else b""
    named = {"x-request-priority": priority, **{k.replace("_", "-"): v for k, v in headers.items()}}
    lines = [f"POST {PATH} HTTP/1.1", "host: bench", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in named.items() if value]
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass(slots=True)
class Replies:
    """What came back, counted."""

    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    malformed: int = 0
    example: str = ""

    @property
    def total(self) -> int:
        """Answers and broken connections."""
        return sum(self.statuses.values())

    def merge(self, other: Replies) -> None:
        """Count those of another, too."""
        self.statuses += other.statuses
        self.reasons += other.reasons
        self.malformed += other.malformed
        self.example = self.example or other.example

    def add(self, reply: Reply) -> None:
        """Count one, and hold a refusal to the contract."""
        self.statuses[reply.status] += 1
        if reply.status in (429, 503):
            self.reasons[f"{reply.status} {reply.headers.get('x-policy-reason', '-')}"] += 1
            if found := faults(reply.headers):
                self.malformed += 1
                self.example = self.example or "; ".join(found)


async def connect(url: str, count: int, on_reply: OnReply) -> list[Connection]:
    """`count` open connections."""
    return await connect_with(url, count, lambda: Connection(on_reply))


async def connect_with(url: str, count: int, protocol: Callable[[], ProtocolT]) -> list[ProtocolT]:
    """`count` open connections that speak this protocol."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> ProtocolT:
        async with gate:
            _, made = await loop.create_connection(protocol, parts.hostname or "", parts.port or 80)
            return made

    return list(await asyncio.gather(*(one() for _ in range(count))))


class Crowd:
    """Many clients that each send one request and wait for its answer.

    Those whom the gate's overload guard refuses (on a busy machine it may) come again after a
    moment, as clients do; `came_again` counts them.
    """

    def __init__(self, url: str) -> None:
        self.replies = Replies()
        self.came_again = 0
        self._url = url
        self._what = b""
        self._connections: list[Connection] = []

    async def come(self, count: int, what: bytes, per_s: float = 500) -> None:
        """`count` more clients arrive, `per_s` of them a second.

        Faster than the gate can decide, they would meet its overload guard instead of its room.
        """
        began, self._what = time.monotonic(), what
        for begin in range(0, count, FEW):
            made = await connect(self._url, min(FEW, count - begin), self._on_reply)
            self._connections += made
            for connection in made:
                connection.send(what)
            await asyncio.sleep(began + (begin + FEW) / per_s - time.monotonic())

    def recount(self) -> None:
        """Forget the answers so far; those still to come are counted from zero."""
        self.replies = Replies()

    def leave(self) -> None:
        """All of them hang up."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _on_reply(self, connection: Connection, reply: Reply) -> None:
        if reply.headers.get("x-policy-reason") == "overloaded":
            self.came_again += 1
            loop = asyncio.get_running_loop()
            loop.call_later(COME_AGAIN_S, connection.send, self._what)
        else:
            self.replies.add(reply)


async def closed_loop(url: str, count: int, what: bytes, seconds: float) -> Loop:
    """`count` clients, each sending its next request on the answer to the one before."""
    loop = Loop(what)
    await loop.open(url, count)
    try:
        await asyncio.sleep(seconds)
    finally:
        loop.close()
    return loop


class Loop:
    """Clients in a closed loop; `replies` grows while it runs."""

    def __init__(self, what: bytes) -> None:
        self.replies = Replies()
        self._what = what
        self._connections: list[Connection] = []
        self._closed = False

    async def open(self, url: str, count: int) -> None:
        """Connect and begin."""
        for begin in range(0, count, AT_ONCE):
            made = await connect(url, min(AT_ONCE, count - begin), self._next)
            self._connections += made
            for connection in made:
                connection.send(self._what)

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        for connection in self._connections:
            connection.close()

    def _next(self, connection: Connection, reply: Reply) -> None:
        if self._closed:
            return
        self.replies.add(reply)
        if connection.open:
            connection.send(self._what)
