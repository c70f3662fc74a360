"""The HTTP API for people, probes and scrapers: health, metrics, live state, a page that shows it.

    /healthz   200 as long as the event loop turns
    /readyz    200 when traffic may come, else 503 and the reason
    /metrics   Prometheus text
    /statusz   live state, JSON
    /history   the last minutes of each pool, JSON columns for charts
    /          all of it for human eyes

With an admin token all but the two probes want it (`Authorization: Bearer …`). Nothing here but
the API of the jobs (`jobs_api`) changes state, and nothing here knows where the numbers come from:
they are callables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from policy_server.adapters.admin_token import AdminToken, AdminTokenError
from policy_server.adapters.jobs_api import JobsApi, Replayed
from policy_server.adapters.status_page import load_page
from policy_server.config_source import ConfigError

PROBES = frozenset({"/healthz", "/readyz"})
"""Open even with a token: a kubelet has none."""

CHALLENGES = ('Bearer realm="policy-server"', 'Basic realm="policy-server", charset="UTF-8"')
COMMON_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class HttpDeps:
    """What the API shows. All of it is called on the event loop and must be quick.

    `is_ready` gives None when ready, else the reason. `status` and `history` must be JSON-ready.
    """

    render_metrics: Callable[[], bytes]
    status: Callable[[], Mapping[str, object]]
    history: Callable[[], Mapping[str, object]]
    is_ready: Callable[[], str | None]
    admin_token: AdminToken | None = None
    jobs: JobsApi | None = None


def build_http_app(deps: HttpDeps) -> web.Application:
    """An aiohttp application; whoever runs it chooses the address (loopback by default)."""
    app = web.Application(middlewares=[_common_headers, _guard(deps.admin_token, deps.jobs)])
    endpoints = _Endpoints(deps)
    app.add_routes(
        [
            web.get("/healthz", endpoints.healthz),
            web.get("/readyz", endpoints.readyz),
            web.get("/metrics", endpoints.metrics),
            web.get("/statusz", endpoints.statusz),
            web.get("/history", endpoints.history),
            web.get("/", endpoints.index),
        ]
    )
    if deps.jobs is not None:
        app.add_routes(deps.jobs.routes())
        app.on_response_prepare.append(Replayed.bare)
        app.on_shutdown.append(deps.jobs.close)
    return app


class _Endpoints:
    def __init__(self, deps: HttpDeps) -> None:
        self._deps = deps
        self._page, self._page_policy = load_page()

    async def healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        reason = self._deps.is_ready()
        if reason is None:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"not ready: {reason}\n")

    async def metrics(self, request: web.Request) -> web.Response:
        headers = {"content-type": CONTENT_TYPE_LATEST}
        return web.Response(body=self._deps.render_metrics(), headers=headers)

    async def statusz(self, request: web.Request) -> web.Response:
        text = json.dumps(self._deps.status(), indent=1) + "\n"
        return web.Response(text=text, content_type="application/json")

    async def history(self, request: web.Request) -> web.Response:
        text = json.dumps(self._deps.history(), separators=(",", ":")) + "\n"
        return web.Response(text=text, content_type="application/json")

    async def index(self, request: web.Request) -> web.Response:
        headers = {"content-security-policy": self._page_policy}
        return web.Response(text=self._page, content_type="text/html", headers=headers)


@web.middleware
async def _common_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:  # 404, 405: aiohttp raises its answers
        error.headers.update(COMMON_HEADERS)
        raise
    if not response.prepared and not isinstance(response, Replayed):
        response.headers.update(COMMON_HEADERS)
    return response


def _guard(token: AdminToken | None, jobs: JobsApi | None) -> Middleware:
    """A middleware that asks for the token wherever one is needed; Envoy, when it brings a client
    to the jobs, has proved itself otherwise."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None or request.path in PROBES:
            return await handler(request)
        try:
            admitted = jobs is not None and jobs.brought_by_gateway(request)
            admitted = admitted or token.admits(request.headers.get("authorization", ""))
        except (AdminTokenError, ConfigError) as error:
            return web.Response(status=503, text=f"{error}\n")
        return await handler(request) if admitted else _unauthorized()

    return guard


def _unauthorized() -> web.Response:
    response = web.Response(status=401, text="admin token required\n")
    for challenge in CHALLENGES:  # one header each: some browsers read only one per line
        response.headers.add("www-authenticate", challenge)
    return response
