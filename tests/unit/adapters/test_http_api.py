"""The HTTP API as a probe, a scraper and a person meet it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from policy_server.adapters.admin_token import AdminToken
from policy_server.adapters.http_api import HttpDeps, build_http_app

TOKEN = "correct-horse-battery"
GUARDED = ("/", "/metrics", "/statusz", "/history")

Client = TestClient[Request, Application]


class Server:
    """What stands behind the API; a test turns its knobs."""

    def __init__(self) -> None:
        self.not_ready: str | None = None
        self.deps = HttpDeps(
            render_metrics=lambda: b"policy_limit 1.0\n",
            status=lambda: {"version": "1.2.3", "pools": []},
            history=lambda: {"every_s": 2.0, "pools": {}},
            is_ready=lambda: self.not_ready,
        )


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with TestClient(TestServer(build_http_app(server.deps))) as client:
        yield client


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    rewrite(file, f"{TOKEN}\n")
    return file


def rewrite(file: Path, content: str | None) -> None:
    """New content; None = the file is gone."""
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_text(content)


@pytest.fixture
async def guarded(server: Server, token_file: Path) -> AsyncIterator[Client]:
    deps = replace(server.deps, admin_token=AdminToken(token_file))
    async with TestClient(TestServer(build_http_app(deps))) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_probe_sees_health_and_readiness(client: Client, server: Server) -> None:
    assert (await client.get("/healthz")).status == 200
    assert (await client.get("/readyz")).status == 200
    server.not_ready = "draining"
    answer = await client.get("/readyz")
    assert (answer.status, await answer.text()) == (503, "not ready: draining\n")
    assert (await client.get("/healthz")).status == 200


async def test_a_scraper_gets_prometheus_text(client: Client) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert await answer.read() == b"policy_limit 1.0\n"


async def test_status_is_json_and_never_cached(client: Client) -> None:
    answer = await client.get("/statusz")
    assert (await answer.json())["version"] == "1.2.3"
    assert answer.headers["cache-control"] == "no-store"
    assert await (await client.get("/history")).json() == {"every_s": 2.0, "pools": {}}


async def test_the_page_stands_alone_and_runs_only_its_own_script(client: Client) -> None:
    answer = await client.get("/")
    page = await answer.text()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in page


async def test_an_unknown_path_is_404_and_a_post_is_405(client: Client) -> None:
    assert (await client.get("/admin")).status == 404
    assert (await client.post("/statusz")).status == 405


async def test_with_a_token_only_the_probes_are_open(guarded: Client) -> None:
    for path in GUARDED:
        answer = await guarded.get(path)
        assert answer.status == 401
        assert len(answer.headers.getall("www-authenticate")) == 2
        assert (await guarded.get(path, headers=bearer(TOKEN))).status == 200
    for path in ("/healthz", "/readyz"):
        assert (await guarded.get(path)).status == 200


async def test_a_browser_may_send_the_token_as_its_password(guarded: Client) -> None:
    basic = base64.b64encode(f"admin:{TOKEN}".encode()).decode()
    assert (await guarded.get("/", headers={"authorization": f"Basic {basic}"})).status == 200


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong-horse-battery",
        f"Bearer {TOKEN}x",
        TOKEN,
        f"Digest {TOKEN}",
        "Basic !!!",
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
        "Bearer \xff\xfe",
    ],
)
async def test_anything_else_stays_outside(guarded: Client, authorization: str) -> None:
    answer = await guarded.get("/statusz", headers={"authorization": authorization})
    assert answer.status == 401
    assert TOKEN not in await answer.text()


async def test_a_rotated_token_counts_at_once(guarded: Client, token_file: Path) -> None:
    assert (await guarded.get("/statusz", headers=bearer(TOKEN))).status == 200
    rewrite(token_file, "another-secret-of-tonight\n")
    assert (await guarded.get("/statusz", headers=bearer(TOKEN))).status == 401
    answer = await guarded.get("/statusz", headers=bearer("another-secret-of-tonight"))
    assert answer.status == 200


@pytest.mark.parametrize("content", [None, "", "short\n"])
async def test_a_useless_token_file_opens_nothing(
    guarded: Client, token_file: Path, content: str | None
) -> None:
    rewrite(token_file, content)
    for authorization in ("", "Bearer ", "Bearer short", f"Bearer {TOKEN}"):
        answer = await guarded.get("/statusz", headers={"authorization": authorization})
        assert answer.status == 503
        assert "admin token file" in await answer.text()
    assert (await guarded.get("/healthz")).status == 200


async def test_only_the_exact_probe_paths_are_open(guarded: Client) -> None:
    for path in ("/healthz/", "/readyz/x", "/Healthz", "/%68ealthz/../statusz"):
        assert (await guarded.get(path)).status == 401
