"""A model server that answers with what it was asked: headers as JSON, streams, WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web


class EchoUpstream:
    """Answers `/stream` chunk by chunk, `/slow` when `finish` is set, `/ws` by echo, `/mirror`
    with the body that came; `/half` is a stream that stops after its first chunk until `finish`
    is set, `/flaky` fails twice (503, 429) before it answers; `/crash` hangs up, `/chained` refuses
    as a gateway of ours would. `/v1` may stand in front of the first three and of `/half`."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.requests: list[web.BaseRequest] = []
        self.flaky: list[web.BaseRequest] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        path = request.path.removeprefix("/v1")
        if path == "/ws":
            return await self._echo(request)
        if path == "/slow":
            await self.finish.wait()
        if path in ("/stream", "/half"):
            return await self._stream(request)
        body = await request.read()
        if request.path == "/mirror":
            return web.Response(body=body, content_type="application/octet-stream")
        if request.path == "/flaky" and len(self.flaky) < 2:
            self.flaky.append(request)
            status = (503, 429)[len(self.flaky) - 1]
            return web.Response(status=status, headers={"retry-after-ms": "10"})
        if request.path == "/crash":
            assert request.transport is not None
            request.transport.close()
        if request.path == "/chained":
            ours = {"x-policy-reason": "predicted_wait", "x-policy-local": "UF"}
            return web.Response(status=429, headers={"retry-after": "77", **ours})
        self.flaky.clear()
        return web.json_response(
            {"headers": dict(request.headers), "path": request.path_qs, "bytes": len(body)},
            headers={"endpoint-load-metrics": "JSON {}", "server": "echo"},
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(3):
            await response.write(b"data: {}\n\n")
            if request.path.endswith("/half"):
                await self.finish.wait()
        await response.write_eof()
        return response

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket


@contextlib.asynccontextmanager
async def running_upstream(
    port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[EchoUpstream]:
    """The echo server on 127.0.0.1:port."""
    upstream = EchoUpstream()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{tail:.*}", upstream.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        yield upstream
    finally:
        await runner.cleanup()
