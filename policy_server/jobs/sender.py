"""Sends one job through Envoy and takes its answer, whole and as it comes.

Nothing is added, decoded or followed: method, path, headers and body go as the client sent them,
the answer is kept as the model server gave it. Envoy marks what it answers by itself.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from policy_server.config import MAX_JOB_ANSWER_BYTES
from policy_server.config_envoy import SILENT_ANSWER_S
from policy_server.config_jobs import HOP_BY_HOP, LOCAL_HEADER, TARGET_CHARS
from policy_server.journal.jobs import Answer, Headers
from policy_server.memory import Share

CONNECT_S = 5.0
SILENT_S = SILENT_ANSWER_S + 60.0
"""Envoy ends a silent answer itself, and says so; later than that it is Envoy that is silent."""
BROKEN_OFF = frozenset({"UC", "UR", "UT", "UPE", "UMSDR", "LR", "SI", "DT"})
"""Envoy's flags for a model server that was reached and did not answer to the end."""
CHUNK = 64 * 1024
NOT_KEPT = HOP_BY_HOP | {"proxy-authenticate"}
_AUTOMATIC = ("accept", "accept-encoding", "content-type", "user-agent")


class TooLargeError(Exception):
    """The answer is larger than one that is kept."""


def request_target(target: str) -> str:
    """The target as it goes over the wire, which is what a passport must be for: a lone `?` at its
    end, a fragment and what is no ASCII don't go as they are. Raises ValueError for what is none.
    """
    if not target.startswith("/"):
        raise ValueError("no path")
    return URL("http://jobs" + quote(target, safe=TARGET_CHARS), encoded=True).raw_path_qs


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent. `path` is the request target, query included: one of `request_target`."""

    method: str
    path: str
    authority: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer and its times, seconds from the sending. `flags`: why Envoy gave it by itself;
    None = a model server did. `held_back`: it had to wait for memory here, so its times are not
    the model server's."""

    answer: Answer
    flags: str | None
    first_byte_s: float
    last_byte_s: float
    held_back: bool = False

    @property
    def reached(self) -> bool:
        """Whether a model server may have got the request."""
        return self.flags is None or not BROKEN_OFF.isdisjoint(self.flags.split(","))


class Sender:
    """A client of one Envoy listener. Use it on one event loop."""

    def __init__(self, via: str) -> None:
        self._via = via.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def send(self, parcel: Parcel, share: Share) -> Delivery:
        """Send and read to the end, as far as there is memory for it.

        Raises aiohttp.ClientError or OSError when no whole answer came, `TooLargeError` when it
        was too large to keep.
        """
        session = self._open()
        headers = CIMultiDict([("host", parcel.authority), *parcel.headers])
        began = time.monotonic()
        async with session.request(
            parcel.method,
            URL(self._via + parcel.path, encoded=True),
            data=parcel.body,
            headers=headers,
            allow_redirects=False,
        ) as response:
            first = time.monotonic() - began
            body, held_back = bytearray(), False
            async for chunk in response.content.iter_chunked(CHUNK):
                if len(body) + len(chunk) > MAX_JOB_ANSWER_BYTES:
                    raise TooLargeError
                held_back |= await share.grow(len(chunk))
                body += chunk
            kept = _kept(response.raw_headers)
            answer = Answer(response.status, kept, bytes(body))
            flags = response.headers.get(LOCAL_HEADER)
            return Delivery(answer, flags, first, time.monotonic() - began, held_back)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=_AUTOMATIC,
                timeout=aiohttp.ClientTimeout(None, sock_connect=CONNECT_S, sock_read=SILENT_S),
                max_line_size=64 * 1024,
                max_field_size=64 * 1024,
                read_bufsize=256 * 1024,
            )
        return self._session

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)


def _kept(raw: tuple[tuple[bytes, bytes], ...]) -> Headers:
    pairs = ((n.decode("latin-1").lower(), v.decode("utf-8", "replace")) for n, v in raw)
    return tuple((n, v) for n, v in pairs if n not in NOT_KEPT and not n.startswith("x-policy-"))
