"""One HTTP attempt and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import aiohttp

from policy_server.load.sse import Stream, read_stream, tokens_of


class End(Enum):
    """How a request ended, as its client sees it. Closed set: every request has exactly one.

    SHED is any 429; INCOMPLETE a 200 whose body broke off; ERROR no answer at all; UNFINISHED
    still under way when the drain period ended.
    """

    SERVED = "served"
    SHED = "shed_429"
    SERVER_ERROR = "http_5xx"
    OTHER_STATUS = "other_status"
    INCOMPLETE = "incomplete"
    ERROR = "error"
    UNFINISHED = "unfinished"


@dataclass(slots=True)
class Attempt:
    """One attempt. `first_content` is on the caller's clock; `error` names what broke."""

    end: End
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    first_content: float | None = None
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where attempts go: an open session, the full URL and a monotonic clock."""

    session: aiohttp.ClientSession
    url: str
    clock: Callable[[], float]


async def send(target: Target, body: bytes, headers: Mapping[str, str]) -> Attempt:
    """Send one request and read its answer to the end. Never raises, except when cancelled."""
    attempt = Attempt(End.ERROR)
    stream = Stream()
    try:
        async with target.session.post(target.url, data=body, headers=headers) as response:
            attempt.status = response.status
            attempt.headers = response.headers
            attempt.end = _end_of_status(response.status)
            if response.content_type == "text/event-stream" and response.status == 200:
                await read_stream(response.content, stream, target.clock)
                attempt.end = End.SERVED if stream.complete else End.INCOMPLETE
                attempt.tokens = stream.tokens
            else:
                attempt.tokens = tokens_of(await response.read())
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        attempt.error = f"{type(error).__name__}: {error}"[:200]
        attempt.end = End.INCOMPLETE if attempt.status == 200 else End.ERROR
    attempt.first_content = stream.first_content
    return attempt


def _end_of_status(status: int) -> End:
    if status == 200:
        return End.SERVED
    if status == 429:
        return End.SHED
    return End.SERVER_ERROR if status >= 500 else End.OTHER_STATUS
