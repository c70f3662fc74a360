"""What a client really sent, and when: a recording proxy, and a server that refuses as told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.support.envoy_process import free_ports

HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]}


@dataclass(frozen=True)
class Attempt:
    """One request as it came; `at` on the monotonic clock, `answered` when its headers went."""

    at: float
    answered: float
    status: int
    request: Mapping[str, str]
    response: Mapping[str, str]


@dataclass
class Recorder:
    """Everything that one client sent."""

    url: str
    attempts: list[Attempt] = field(default_factory=list)
    on_attempt: Callable[[Attempt], None] = lambda _attempt: None

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.on_attempt(attempt)

    @property
    def statuses(self) -> list[int]:
        """What the attempts were told."""
        return [attempt.status for attempt in self.attempts]

    @property
    def waits_s(self) -> list[float]:
        """From each answer to the next attempt."""
        pairs = zip(self.attempts, self.attempts[1:], strict=False)
        return [later.at - earlier.answered for earlier, later in pairs]


@contextlib.asynccontextmanager
async def recording(upstream: str) -> AsyncIterator[Recorder]:
    """A proxy in front of `upstream`."""
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            at = time.monotonic()
            headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
            body = await request.read()
            url = upstream + request.path_qs
            async with session.request(request.method, url, data=body, headers=headers) as answer:
                shown = {k: v for k, v in answer.headers.items() if k.lower() not in HOP}
                recorder.add(_attempt(request, at, answer.status, shown))
                response = web.StreamResponse(status=answer.status, headers=shown)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        async with _serving(forward) as url:
            recorder = Recorder(url)
            yield recorder


@contextlib.asynccontextmanager
async def refusing(headers: Mapping[str, str], times: int) -> AsyncIterator[Recorder]:
    """Answers 429 with these headers so often, then 200."""

    async def answer(request: web.Request) -> web.Response:
        at = time.monotonic()
        await request.read()
        refused = len(recorder.attempts) < times
        status, shown = (429, dict(headers)) if refused else (200, {})
        recorder.add(_attempt(request, at, status, shown))
        body = {"error": {"message": "busy", "type": "rate_limit_error"}} if refused else ANSWER
        if "/messages" in request.path:
            content = [{"type": "text", "text": "hello"}]
            body = body if refused else {"type": "message", "role": "assistant", "content": content}
        return web.json_response(body, status=status, headers=shown)

    async with _serving(answer) as url:
        recorder = Recorder(url)
        yield recorder


def _attempt(request: web.Request, at: float, status: int, response: Mapping[str, str]) -> Attempt:
    lower = {k.lower(): v for k, v in response.items()}
    asked = {k.lower(): v for k, v in request.headers.items()}
    return Attempt(at, time.monotonic(), status, asked, lower)


@contextlib.asynccontextmanager
async def _serving(handler: Callable[[web.Request], object]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
