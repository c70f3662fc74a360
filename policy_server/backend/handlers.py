"""HTTP handlers of the emulator."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http import HttpVersion11

from policy_server.backend.answers import error_body, plain_body, stream_frames
from policy_server.backend.asks import Api, Ask, BadRequestError, read_ask
from policy_server.backend.call import Call
from policy_server.backend.control import Control
from policy_server.backend.driver import EngineDriver
from policy_server.backend.engine import Engine, Step
from policy_server.backend.metrics import BackendMetrics, orca_header
from policy_server.backend.params import BackendParams

ORCA_REQUEST_HEADER = "endpoint-load-metrics-format"
ORCA_HEADER = "endpoint-load-metrics"

_ID_PREFIX = {
    Api.CHAT: "chatcmpl-",
    Api.COMPLETION: "cmpl-",
    Api.EMBEDDING: "embd-",
    Api.MESSAGES: "msg_",
}
_PATHS = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETION,
    "/v1/embeddings": Api.EMBEDDING,
    "/v1/messages": Api.MESSAGES,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Handlers:
    """Owns the engine, its driver and the counters. Create it inside a running event loop."""

    def __init__(self, params: BackendParams) -> None:
        self.params = params
        self.engine: Engine[Call] = Engine(params.engine)
        self.metrics = BackendMetrics(self.engine, params.model)
        self.driver = EngineDriver(self.engine, self._deliver)
        self.control = Control(self.driver)
        self._ids = itertools.count(1)
        self._warm_at = time.monotonic() + params.cold_start_s

    def add_routes(self, app: web.Application) -> None:
        """Mount every endpoint."""
        for path, api in _PATHS.items():
            app.router.add_post(path, self._generating(api))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/control", self._show_control)
        app.router.add_post("/control", self._set_control)

    def _deliver(self, step: Step[Call], calls: list[Call]) -> None:
        self.metrics.on_step(step, calls)
        for call in calls:
            call.emit()

    def _generating(self, api: Api) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if (refusal := self._refusal(api)) is not None:
                return refusal
            try:
                ask = read_ask(api, json.loads(await request.read()), self.params.model)
                if self.params.only_model and ask.model != self.params.model:
                    unknown = f"The model `{ask.model}` does not exist."
                    return _error(api, 404, "NotFoundError", unknown)
                call = Call(ask.prompt_tokens, ask.max_tokens, _future())
                if not self.engine.fits(call):
                    raise BadRequestError(
                        f"prompt and answer exceed {self.engine.params.kv_tokens} tokens"
                    )
            except BadRequestError as error:
                return _error(api, 400, "invalid_request_error", str(error))
            except (ValueError, RecursionError):
                return _error(api, 400, "invalid_request_error", "the body is not JSON")
            return await self._answer(request, ask, call)

        return handle

    async def _answer(self, request: web.Request, ask: Ask, call: Call) -> web.StreamResponse:
        answer_id = f"{_ID_PREFIX[ask.api]}{next(self._ids):032x}"
        reason = "abort"
        try:
            if ask.stream:
                response = await self._stream(request, ask, call, answer_id)
            else:
                response = await self._plain(request, ask, call, answer_id)
            reason = "length" if ask.limited else "stop"
        finally:
            # Also for a client that left: the handler is cancelled when its connection closes.
            if not call.finished:
                self.driver.cancel(call)
            self.metrics.on_end(call, reason)
        return response

    async def _stream(
        self, request: web.Request, ask: Ask, call: Call, answer_id: str
    ) -> web.StreamResponse:
        """Headers at once, as vLLM sends them; the first chunk when the first token exists."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        chunked = request.version >= HttpVersion11
        frames = stream_frames(ask, answer_id, int(time.time()), chunked)
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        call.stream_to(request.transport, frames)
        self.driver.submit(call)
        await call.done
        await response.write_eof()
        return response

    async def _plain(
        self, request: web.Request, ask: Ask, call: Call, answer_id: str
    ) -> web.StreamResponse:
        self.driver.submit(call)
        await call.done
        headers: dict[str, str] = {}
        wanted = request.headers.get(ORCA_REQUEST_HEADER) if self.params.orca else None
        if wanted and (report := orca_header(self.engine, wanted)) is not None:
            headers[ORCA_HEADER] = report
        body = plain_body(ask, answer_id, int(time.time()))
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _refusal(self, api: Api) -> web.Response | None:
        if time.monotonic() < self._warm_at:
            return _error(api, 503, "overloaded_error", "the model is loading")
        if (status := self.control.fail_status) is not None:
            return _error(api, status, "server_error", "failing on request (POST /control)")
        return None

    async def _models(self, _request: web.Request) -> web.Response:
        model = {"id": self.params.model, "object": "model", "created": 0, "owned_by": "emulator"}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if time.monotonic() < self._warm_at else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics.render(), headers=headers)

    async def _show_control(self, _request: web.Request) -> web.Response:
        tokens = {
            "prompt_tokens_total": self.metrics.prompt_tokens_total,
            "generation_tokens_total": self.metrics.generation_tokens_total,
            "ended": self.metrics.finished,
        }
        return web.json_response(self.control.state() | tokens)

    async def _set_control(self, request: web.Request) -> web.Response:
        try:
            self.control.apply(json.loads(await request.read()))
        except ValueError as error:
            return _error(None, 400, "invalid_request_error", str(error))
        return await self._show_control(request)


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _error(api: Api | None, status: int, kind: str, message: str) -> web.Response:
    body = error_body(api, status, kind, message)
    return web.Response(status=status, body=body, content_type="application/json")
