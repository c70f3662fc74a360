"""What `top` says when it cannot read a server: one line with the way out."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from policy_server.adapters.admin_token import AdminToken
from policy_server.adapters.http_api import HttpDeps, build_http_app
from policy_server.config import ConfigError
from policy_server.top.source import NoAnswerError, Source, check_url, read_token

TOKEN = "correct-horse-battery"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture
async def server(token_file: Path) -> AsyncIterator[TestServer]:
    deps = HttpDeps(
        render_metrics=lambda: b"",
        status=lambda: {"pools": []},
        history=lambda: {"every_s": 2.0, "pools": {"chat": {"waiting": [1]}}},
        is_ready=lambda: None,
        admin_token=AdminToken(token_file),
    )
    async with TestServer(build_http_app(deps)) as server:
        yield server


async def problem(url: str, token: str = "") -> str:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(NoAnswerError) as caught:
            await Source(http, url, token).status()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def remove(file: Path) -> None:
    file.unlink()


async def test_with_the_token_it_reads_state_and_history(
    server: TestServer, token_file: Path
) -> None:
    async with aiohttp.ClientSession() as http:
        source = Source(http, str(server.make_url("/")), read_token(token_file))
        assert await source.status() == {"pools": []}
        assert await source.history() == {"chat": {"waiting": [1]}}


async def test_a_missing_and_a_wrong_token_are_told_apart(
    server: TestServer, token_file: Path
) -> None:
    url = str(server.make_url("/"))
    assert "wants the admin token: give --token-file" in await problem(url)
    assert "refuses this token" in await problem(url, "wrong")
    remove(token_file)
    assert "admin token file" in await problem(url, TOKEN)


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert "(Connection refused): is the policy server running" in await problem(
            f"http://127.0.0.1:{port}"
        )


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"models": []}'])
async def test_another_server(answer: bytes) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=answer)

    app = web.Application()
    app.router.add_get("/statusz", handle)
    async with TestServer(app) as other:
        assert "is not the HTTP port of a policy server" in await problem(str(other.make_url("/")))


async def test_a_server_without_history_has_none(token_file: Path) -> None:
    async with TestServer(web.Application()) as old, aiohttp.ClientSession() as http:
        assert await Source(http, str(old.make_url("/"))).history() == {}


@pytest.mark.parametrize("url", ["nonsense", "localhost:9003", "ftp://h", "http://"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        check_url(url)


def test_a_token_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--token-file"):
        read_token(tmp_path / "nowhere")
