"""The served emulator, as clients see it: raw HTTP, and the official SDKs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import anthropic
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from policy_server.backend.params import BackendParams, EngineParams
from policy_server.backend.server import Backend, run_backend, serving

QUICK = BackendParams(engine=EngineParams(step_ms=1, seq_ms=0), orca=True)
CHAT = "/v1/chat/completions"


def chat(tokens: int = 5, **more: object) -> dict[str, object]:
    body: dict[str, object] = {"messages": [{"role": "user", "content": "x" * 40}]}
    return body | {"max_tokens": tokens} | more


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with serving(QUICK) as served:
        yield served


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session


async def test_a_chat_stream_has_one_chunk_per_token_then_usage_and_done(
    http: aiohttp.ClientSession,
) -> None:
    body = chat(5, stream=True, stream_options={"include_usage": True})
    async with http.post(CHAT, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    texts = [c["choices"][0]["delta"]["content"] for c in chunks[:-1]]
    assert texts == ["", " tok", " tok", " tok", " tok", " tok"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 10,
        "total_tokens": 15,
        "completion_tokens": 5,
    }


async def test_stream_headers_come_at_once_and_the_first_chunk_with_the_first_token(
    backend: Backend, http: aiohttp.ClientSession
) -> None:
    backend.handlers.driver.stall(3600)
    async with http.post(CHAT, json=chat(stream=True)) as response:
        assert response.status == 200
        assert backend.handlers.metrics.generation_tokens_total == 0


async def test_the_openai_sdk_gets_its_answers(backend: Backend) -> None:
    async with openai.AsyncOpenAI(base_url=f"{backend.url}/v1", api_key="none") as client:
        asked = [{"role": "user", "content": "hello"}]
        plain = await client.chat.completions.create(model="m", messages=asked)  # type: ignore
        assert plain.choices[0].finish_reason == "stop"
        assert plain.usage.completion_tokens == 100
        stream = await client.chat.completions.create(  # type: ignore
            model="m", messages=asked, max_completion_tokens=4, stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(texts) == " tok" * 4
        completion = await client.completions.create(model="m", prompt="a", max_tokens=2)
        assert completion.choices[0].text == " tok tok"
        first = await client.embeddings.create(model="m", input=["a", "b"])
        again = await client.embeddings.create(model="m", input="a", encoding_format="float")
        assert first.data[0].embedding == pytest.approx(again.data[0].embedding, abs=1e-6)
        assert first.data[0].embedding != first.data[1].embedding
        assert [model.id async for model in client.models.list()] == [QUICK.model]


async def test_the_anthropic_sdk_gets_its_answers(backend: Backend) -> None:
    async with anthropic.AsyncAnthropic(base_url=backend.url, api_key="none") as client:
        asked = [{"role": "user", "content": "hello"}]
        plain = await client.messages.create(model="m", messages=asked, max_tokens=3)  # type: ignore
        assert plain.content[0].text == " tok tok tok"  # type: ignore[union-attr]
        assert plain.stop_reason == "max_tokens"
        async with client.messages.stream(model="m", messages=asked, max_tokens=3) as stream:  # type: ignore
            message = await stream.get_final_message()
        assert message.usage.output_tokens == 3
        assert message.content[0].text == " tok tok tok"


async def test_a_client_that_leaves_frees_its_only_slot() -> None:
    params = BackendParams(engine=EngineParams(max_num_seqs=1, step_ms=1))
    async with serving(params) as backend, aiohttp.ClientSession(backend.url) as http:
        async with http.post(CHAT, json=chat(250_000, stream=True)) as response:
            await response.content.readany()
            response.close()
        async with http.post(CHAT, json=chat(3)) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 3
        assert backend.handlers.metrics.finished == {"stop": 0, "length": 1, "abort": 1}
        assert backend.handlers.engine.kv_used == 0


@pytest.mark.parametrize("form", ["TEXT", "JSON", "json"])
async def test_orca_reports_come_on_plain_answers_that_asked(
    http: aiohttp.ClientSession, form: str
) -> None:
    headers = {"endpoint-load-metrics-format": form}
    async with http.post(CHAT, json=chat(), headers=headers) as response:
        report = response.headers["endpoint-load-metrics"]
    kind, _, text = report.partition(" ")
    assert kind == form.upper()
    if kind == "JSON":
        assert json.loads(text)["named_metrics"]["num_requests_waiting"] == 0.0
    else:
        assert "named_metrics.kv_cache_usage_perc=" in text
    for body, asked in ((chat(stream=True), headers), (chat(), {})):
        async with http.post(CHAT, json=body, headers=asked) as response:
            await response.read()
            assert "endpoint-load-metrics" not in response.headers


async def test_metrics_carry_vllm_names(http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat(5)) as response:
        await response.read()
    async with http.get("/metrics") as response:
        families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    totals = {name: family.samples[0].value for name, family in families.items()}
    assert totals["vllm:num_requests_running"] == 0
    assert totals["vllm:num_requests_waiting"] == 0
    assert totals["vllm:kv_cache_usage_perc"] == 0
    assert totals["vllm:num_preemptions"] == 0
    assert totals["vllm:prompt_tokens"] == 10
    assert totals["vllm:generation_tokens"] == 5
    count = {s.name: s.value for f in families.values() for s in f.samples}
    assert count["vllm:time_to_first_token_seconds_count"] == 1
    assert count["vllm:inter_token_latency_seconds_count"] == 4
    assert count["vllm:e2e_request_latency_seconds_count"] == 1


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (CHAT, b"{"),
        (CHAT, b"[]"),
        (CHAT, b"\xff"),
        (CHAT, b"[" * 100_000),
        (CHAT, b"{}"),
        (CHAT, b'{"messages":[1]}'),
        (CHAT, b'{"messages":[{"content":"x"}],"max_tokens":0}'),
        (CHAT, b'{"messages":[{"content":"x"}],"max_tokens":"9"}'),
        (CHAT, b'{"messages":[{"content":"x"}],"max_tokens":500000}'),
        ("/v1/completions", b"{}"),
        ("/v1/embeddings", b'{"input":[]}'),
        ("/v1/messages", b'{"messages":[]}'),
    ],
)
async def test_a_bad_body_is_a_clear_400(
    backend: Backend, http: aiohttp.ClientSession, path: str, data: bytes
) -> None:
    async with http.post(path, data=data) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert not backend.handlers.engine.has_work


async def test_a_cold_start_answers_503_everywhere() -> None:
    params = BackendParams(cold_start_s=3600)
    async with serving(params) as cold, aiohttp.ClientSession(cold.url) as http:
        async with http.get("/health") as response:
            assert response.status == 503
        async with http.post(CHAT, json=chat()) as response:
            assert response.status == 503


async def test_control_changes_the_engine_at_runtime(
    backend: Backend, http: aiohttp.ClientSession
) -> None:
    changes = {"max_num_seqs": 2, "step_ms": 3.5, "fail": "503"}
    async with http.post("/control", json=changes) as response:
        state = await response.json()
    assert state["params"]["max_num_seqs"] == 2
    assert backend.handlers.engine.params.step_ms == 3.5
    async with http.post(CHAT, json=chat()) as response:
        assert response.status == 503
    async with http.post("/control", json={"fail": None}):
        pass
    async with http.post(CHAT, json=chat()) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slots": 3}, "slots"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 1.5}, "max_num_seqs"),
        ({"step_ms": True}, "step_ms"),
        ({"stall_s": -1}, "stall_s"),
        ({"fail": 200}, "fail"),
        ([], "object"),
    ],
)
async def test_a_bad_control_request_names_the_key_and_changes_nothing(
    backend: Backend, http: aiohttp.ClientSession, changes: object, named: str
) -> None:
    async with http.post("/control", json=changes) as response:
        assert response.status == 400
        assert named in (await response.json())["error"]["message"]
    assert backend.handlers.engine.params == QUICK.engine


async def test_a_taken_port_is_one_clear_line(backend: Backend) -> None:
    with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{backend.port}.*--port"):
        await run_backend(QUICK, backend.host, backend.port)


async def test_sigterm_ends_it_also_with_a_stream_under_way() -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_backend(QUICK, "127.0.0.1", 0, ready.set_result))
    async with (
        aiohttp.ClientSession(await ready) as http,
        http.post(CHAT, json=chat(100_000, stream=True)) as response,
    ):
        await response.content.readany()
        os.kill(os.getpid(), signal.SIGTERM)
        await task


async def test_run_backend_says_ready_once_and_ends_when_cancelled() -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_backend(QUICK, "127.0.0.1", 0, ready.set_result))
    url = await ready
    async with aiohttp.ClientSession(url) as http, http.get("/health") as response:
        assert response.status == 200
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_in_another_thread_signals_are_left_to_the_caller() -> None:
    async def serve_once() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_backend(QUICK, "127.0.0.1", 0, ready.set_result))
        assert await ready
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    before = signal.getsignal(signal.SIGTERM)
    await asyncio.to_thread(asyncio.run, serve_once())
    assert signal.getsignal(signal.SIGTERM) is before


async def test_a_backend_of_one_model_knows_no_other_as_vllm_does() -> None:
    async with (
        serving(replace(QUICK, model="meta/llama", only_model=True)) as backend,
        openai.AsyncOpenAI(base_url=f"{backend.url}/v1", api_key="none", max_retries=0) as client,
    ):
        (listed,) = (await client.models.list()).data
        asked = [{"role": "user", "content": "hello"}]
        answer = await client.chat.completions.create(model=listed.id, messages=asked)  # type: ignore
        assert answer.model == "meta/llama"
        with pytest.raises(openai.NotFoundError, match="The model `gpt` does not exist"):
            await client.chat.completions.create(model="gpt", messages=asked)  # type: ignore
