"""Warming up: what counts as settled, and servers that load, compile, never settle or are gone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from policy_server.backend.params import BackendParams, EngineParams
from policy_server.backend.server import serving
from policy_server.load import warmup
from policy_server.load.warmup import Settling, warm_up
from policy_server.load.warmup_params import WarmupParams
from tests.support.envoy_process import free_ports


def settling(*rounds: tuple[float, ...]) -> Settling:
    return Settling((16, 256), list(rounds))


def test_one_round_tells_nothing() -> None:
    assert settling().unsettled() == [16, 256]
    assert settling((0.1, 0.2)).unsettled() == [16, 256]


def test_two_alike_are_settled() -> None:
    assert settling((0.1, 0.2), (0.11, 0.19)).unsettled() == []


def test_a_size_that_still_falls_is_not() -> None:
    assert settling((2.0, 0.2), (0.1, 0.2)).unsettled() == [16]
    assert settling((2.0, 0.2), (0.1, 0.2), (0.1, 0.2)).unsettled() == []


def test_nor_is_one_that_rose_above_its_best() -> None:
    assert settling((0.1, 0.2), (0.1, 0.9)).unsettled() == [256]
    assert settling((0.1, 0.2), (0.1, 0.9), (0.1, 0.9)).unsettled() == [256]


def test_milliseconds_are_noise() -> None:
    assert settling((0.001, 0.02), (0.004, 0.01)).unsettled() == []


def test_a_server_is_asked_at_its_chat_endpoint_unless_a_path_is_given() -> None:
    assert WarmupParams("http://h:1/").endpoint == "http://h:1/v1/chat/completions"
    assert WarmupParams("http://h:1/v1/embeddings").endpoint == "http://h:1/v1/embeddings"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "127.0.0.1:8000"},
        {"sizes": ()},
        {"sizes": (0,)},
        {"max_rounds": 1},
        {"max_s": 0.0},
        {"max_s": float("inf")},
        {"max_tokens": 0},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="--"):
        WarmupParams(**{"url": "http://h:1", **wrong})  # type: ignore[arg-type]


Handler = Callable[[web.Request], Awaitable[web.Response]]


@contextlib.asynccontextmanager
async def model(handler: Handler, path: str = "/v1/chat/completions") -> AsyncIterator[str]:
    """A server with this endpoint and a list of one model."""
    app = web.Application()
    app.router.add_post(path, handler)
    app.router.add_get("/v1/models", listing("meta/llama"))
    async with served(app) as url:
        yield url


def listing(*names: str) -> Handler:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in names]})

    return models


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "PAUSE_S", 0.01)
    monkeypatch.setattr(warmup, "NOISE_S", 0.2)


async def test_a_server_that_loads_and_then_compiles_is_warm_in_the_end() -> None:
    seen: list[int] = []
    compiled: set[int] = set()

    async def answer(request: web.Request) -> web.Response:
        size = len((await request.json())["messages"][0]["content"])
        seen.append(size)
        if len(seen) <= 3:
            return web.Response(status=503)
        if size not in compiled:
            compiled.add(size)
            await asyncio.sleep(0.6)
        return web.Response()

    lines: list[str] = []
    async with model(answer) as url:
        assert await warm_up(WarmupParams(url, sizes=(16, 64)), lines.append)
    assert set(seen) == {64, 256}
    assert lines[-1].startswith("warm after ")
    assert lines[0].startswith("round 1: 16 tokens 0.6")
    assert len(lines) == 4  # the slow round, two alike, the verdict


async def test_one_that_never_settles_is_given_up_after_so_many_rounds() -> None:
    count = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        await asyncio.sleep(0.5 if count % 2 else 0.0)
        return web.Response()

    lines: list[str] = []
    async with model(answer) as url:
        params = WarmupParams(url, sizes=(16,), max_rounds=4)
        assert not await warm_up(params, lines.append)
    assert lines[-1].startswith("not warm after 4 rounds: prompts of 16 tokens still move")


async def test_one_that_is_not_there_is_given_up_in_time_and_named() -> None:
    (port,) = free_ports(1)
    lines: list[str] = []
    params = WarmupParams(f"http://127.0.0.1:{port}", max_s=0.3)
    assert not await warm_up(params, lines.append)
    assert lines[-1].startswith("not warm after 0.3 s: ")
    assert str(port) in lines[-1]


class Told:
    """Warming something up: the verdict and what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def warm(self, params: WarmupParams) -> bool:
        async with asyncio.timeout(30):
            return await warm_up(params, self.lines.append)

    @property
    def end(self) -> str:
        return self.lines[-1]


class Recorder:
    """Answers everybody and keeps what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({})


# -- the model ------------------------------------------------------------------------------------

STRICT = BackendParams(EngineParams(step_ms=1, seq_ms=0), model="meta/llama", only_model=True)


async def test_the_name_is_the_first_that_the_server_lists() -> None:
    """Our emulator as strict as vLLM: 404 for any other name."""
    told = Told()
    async with serving(STRICT) as backend:
        assert await told.warm(WarmupParams(backend.url, sizes=(16, 64)))
        assert await told.warm(WarmupParams(f"{backend.url}/v1/embeddings", sizes=(16, 64)))
        assert await told.warm(WarmupParams(f"{backend.url}/v1/completions", sizes=(16, 64)))


async def test_a_name_that_it_does_not_know_ends_it_at_once_with_its_words() -> None:
    told = Told()
    async with serving(STRICT) as backend:
        assert not await told.warm(WarmupParams(backend.url, model="warmup"))
    assert len(told.lines) == 1
    assert "status 404" in told.end
    assert "The model `warmup` does not exist." in told.end


async def test_a_name_that_is_given_is_taken_without_asking() -> None:
    recorder, told = Recorder(), Told()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", recorder.answer)
    async with served(app) as url:
        assert await told.warm(WarmupParams(url, model="mine", sizes=(16,)))
    assert {body["model"] for body in recorder.bodies} == {"mine"}


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=404),
        web.Response(text="<html>"),
        web.Response(text="[]"),
        web.Response(text='{"data": [{"name": "x"}]}'),
    ],
    ids=["404", "no JSON", "no list", "no id"],
)
async def test_without_a_list_the_fix_is_said(answer: web.Response) -> None:
    async def models(_: web.Request) -> web.Response:
        return web.Response(status=answer.status, body=answer.body)

    told, app = Told(), web.Application()
    app.router.add_get("/v1/models", models)
    async with served(app) as url:
        assert not await told.warm(WarmupParams(url))
    assert len(told.lines) == 1
    assert "/v1/models" in told.end
    assert "name the model with --model" in told.end


async def test_an_empty_list_may_fill() -> None:
    recorder, told, names = Recorder(), Told(), []

    async def models(request: web.Request) -> web.Response:
        names.append("late")
        return await listing(*names[2:])(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", recorder.answer)
    app.router.add_get("/v1/models", models)
    async with served(app) as url:
        assert await told.warm(WarmupParams(url, sizes=(16,)))
    assert {body["model"] for body in recorder.bodies} == {"late"}


@pytest.mark.parametrize(
    ("url", "models"),
    [
        ("http://h:1", "http://h:1/v1/models"),
        ("http://h:1/v1/embeddings", "http://h:1/v1/models"),
        ("http://h:1/openai/v1/chat/completions?x=1", "http://h:1/openai/v1/models"),
        ("http://h:1/v1/messages", "http://h:1/v1/models"),
    ],
)
def test_the_list_is_beside_the_endpoint(url: str, models: str) -> None:
    assert WarmupParams(url).models_url == models


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 501])
async def test_what_no_second_try_changes_ends_it_at_once(status: int) -> None:
    tries = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        return web.Response(status=status, text="because\n of " + "this " * 500)

    told = Told()
    async with model(answer) as url:
        assert not await told.warm(WarmupParams(url))
    assert tries == 1
    assert f"status {status}: because of this this" in told.end
    assert len(told.end) < 400


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_pass_is_asked_again(status: int) -> None:
    tries = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        return web.Response(status=status if tries < 4 else 200)

    told = Told()
    async with model(answer) as url:
        assert await told.warm(WarmupParams(url, sizes=(16,)))
    assert tries == 5


async def test_a_redirect_is_named_and_not_followed() -> None:
    async def answer(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("https://elsewhere.example/v1")

    told = Told()
    async with model(answer) as url:
        assert not await told.warm(WarmupParams(url))
    assert "status 307, to https://elsewhere.example/v1; name that in --url" in told.end


# -- headers --------------------------------------------------------------------------------------


async def test_headers_go_along_to_the_list_and_to_the_endpoint() -> None:
    recorder, told, asked = Recorder(), Told(), []

    async def models(request: web.Request) -> web.Response:
        asked.append(request.headers.get("authorization"))
        return await listing("m")(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", recorder.answer)
    app.router.add_get("/v1/models", models)
    headers = {"authorization": "Bearer sk-123456", "x-tenant-id": "a"}
    async with served(app) as url:
        assert await told.warm(WarmupParams(url, headers=headers, sizes=(16,)))
    assert asked == ["Bearer sk-123456"]
    assert all(headers.items() <= sent.items() for sent in recorder.headers)


async def test_a_key_is_never_shown_though_the_server_says_it_again() -> None:
    async def answer(request: web.Request) -> web.Response:
        key = request.headers["authorization"].split()[1]
        return web.Response(status=401, text=f"Incorrect API key provided: {key}")

    told = Told()
    async with model(answer) as url:
        params = WarmupParams(url, headers={"authorization": "Bearer sk-123456"})
        assert not await told.warm(params)
    assert "status 401: Incorrect API key provided: …; give a key with --header" in told.end
    assert "sk-123456" not in "".join(told.lines) + repr(params)


# -- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/v1/chat/completions", "max_tokens messages model stream temperature"),
        ("/v1/completions", "max_tokens model prompt stream temperature"),
        ("/v1/embeddings", "input model"),
        ("/v1/messages", "max_tokens messages model stream temperature"),
    ],
)
async def test_each_endpoint_gets_its_own_kind_of_body(path: str, keys: str) -> None:
    recorder, told = Recorder(), Told()
    async with model(recorder.answer, path) as url:
        assert await told.warm(WarmupParams(url + path, sizes=(16,)))
    assert {" ".join(sorted(body)) for body in recorder.bodies} == {keys}


async def test_no_prompt_begins_like_another_though_it_is_run_again() -> None:
    """A prefix cache would answer what it has seen, and nothing would be measured."""
    recorder, told = Recorder(), Told()
    async with model(recorder.answer) as url:
        for _ in range(2):
            assert await told.warm(WarmupParams(url, sizes=(4, 16, 256)))
    texts = [body["messages"][0]["content"] for body in recorder.bodies]
    assert len({text.split()[0] for text in texts}) == len(texts) >= 12
    assert {len(text) for text in texts} == {16, 64, 1024}


# -- time -----------------------------------------------------------------------------------------


async def test_the_request_that_hangs_is_named_when_the_time_is_over() -> None:
    async def answer(request: web.Request) -> web.Response:
        if len((await request.json())["messages"][0]["content"]) > 64:
            await asyncio.sleep(3600)
        return web.Response()

    told = Told()
    async with model(answer) as url:
        assert not await told.warm(WarmupParams(url, sizes=(16, 256), max_s=0.5))
    assert told.end.startswith("not warm after 0.5 s: ")
    assert re.search(
        r"/chat/completions: a prompt of 256 tokens had no answer for [.\d]+ s", told.end
    )


async def test_nothing_but_seconds_bounds_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp's own limit, 300 s, made short here: it would be less than a cold start."""
    monkeypatch.setattr("aiohttp.client.DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.05))

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response()

    told = Told()
    async with model(answer) as url:
        assert await told.warm(WarmupParams(url, sizes=(16,)))
