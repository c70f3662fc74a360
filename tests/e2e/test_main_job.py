"""The main job through the real Envoy: admit, hold, shed, and never lose or leak anything."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from policy_server.load.params import LoadParams
from policy_server.load.runner import run_load
from tests.support.stack import Stack, chat, running_stack

PATH = "/v1/chat/completions"
ONE_SLOT = {
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": 1, "max": 1000}}],
    "classes": {name: {"max_wait_s": 600} for name in ("P0", "P1", "P2")},
}


def fixed(limit: int, **more: object) -> dict[str, object]:
    """A configuration with a fixed limit and long budgets."""
    pools = [{"name": "default", "limit": {"algorithm": "fixed", "initial": limit}}]
    return {**ONE_SLOT, "pools": pools, **more}


async def post(stack: Stack, body: object | None = None, **headers: str) -> tuple[int, dict, bytes]:
    """One request, read to its end."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with stack.client.post(stack.url + PATH, json=body or chat(), headers=names) as answer:
        return answer.status, dict(answer.headers), await answer.read()


async def test_an_admitted_request_is_answered_and_gives_its_slot_back(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        status, headers, body = await post(stack, x_request_priority="P0")
        assert status == 200, body
        assert headers["x-policy-class"] == "P0"
        assert headers["x-queue-wait-ms"] == "0"
        assert b"usage" in body
        await stack.until(waiting=0, inflight=0)


async def test_streams_are_observed_and_feed_the_limit(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        for _ in range(10):
            async with stack.client.post(stack.url + PATH, json=chat(30, stream=True)) as answer:
                text = await answer.text()
                assert text.rstrip().endswith("data: [DONE]")
        await stack.until(inflight=0)
        metrics_url = f"http://127.0.0.1:{stack.where['http']}/metrics"
        async with stack.client.get(metrics_url) as answer:
            metrics = await answer.text()
        assert 'policy_ttft_seconds_count{pool="default"} 10.0' in metrics
        assert 'policy_tpot_seconds_count{pool="default"} 10.0' in metrics


async def test_one_request_id_shared_by_fifty_calls_is_fifty_places(tmp_path: Path) -> None:
    async with running_stack(tmp_path, fixed(10)) as stack:
        await stack.control(stall_s=2)
        calls = [asyncio.create_task(post(stack, x_request_id="agent-7")) for _ in range(50)]
        await stack.until(waiting=40, inflight=10)
        statuses = Counter(status for status, _, _ in await asyncio.gather(*calls))
        assert statuses == {200: 50}
        await stack.until(waiting=0, inflight=0)


async def test_a_killed_policy_server_is_not_noticed_by_five_hundred_held(tmp_path: Path) -> None:
    async with running_stack(tmp_path, fixed(20), backend=("--max-num-seqs", "64")) as stack:
        await stack.control(stall_s=3)
        calls = [asyncio.create_task(post(stack)) for _ in range(520)]
        await stack.until(waiting=500, inflight=20)
        stack.policy.kill()
        await stack.policy.wait()
        await stack.start_policy()
        statuses = Counter(status for status, _, _ in await asyncio.gather(*calls))
        assert statuses == {200: 520}


async def test_a_restarting_serve_hands_its_holds_to_the_next_one(tmp_path: Path) -> None:
    async with running_stack(tmp_path, fixed(5)) as stack:
        await stack.control(stall_s=3)
        calls = [asyncio.create_task(post(stack)) for _ in range(100)]
        await stack.until(waiting=95, inflight=5)
        stack.policy.send_signal(signal.SIGTERM)
        await stack.policy.wait()
        await stack.start_policy()
        statuses = Counter(status for status, _, _ in await asyncio.gather(*calls))
        assert statuses == {200: 100}


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("http", ["http1", "http2"])
async def test_a_client_that_leaves_while_held_frees_its_place(
    tmp_path: Path, http: str, size: int
) -> None:
    async with running_stack(tmp_path, fixed(1)) as stack:
        await stack.control(stall_s=5)
        first = asyncio.create_task(post(stack))
        await stack.until(inflight=1)
        leaver = await _leaver(stack, http, size)
        await stack.until(waiting=1)
        leaver.kill()
        await leaver.wait()
        await stack.until(waiting=0, inflight=1)
        first.cancel()
        await stack.until(waiting=0, inflight=0)


@pytest.mark.parametrize("http", ["http1", "http2"])
async def test_a_client_that_leaves_in_mid_answer_frees_its_slot(tmp_path: Path, http: str) -> None:
    async with running_stack(tmp_path, fixed(1), backend=("--step-ms", "100")) as stack:
        leaver = await _leaver(stack, http, 10, tokens=2000, stream=True)
        await stack.until(inflight=1)
        assert leaver.stdout is not None
        await leaver.stdout.readuntil(b"data:")
        leaver.kill()
        await leaver.wait()
        status, _, _ = await post(stack)
        assert status == 200
        await stack.until(waiting=0, inflight=0)


@pytest.mark.parametrize("http", ["http1", "http2"])
async def test_a_client_that_leaves_just_as_it_is_admitted_frees_its_slot(
    tmp_path: Path, http: str
) -> None:
    async with running_stack(tmp_path, fixed(1), backend=("--step-ms", "20")) as stack:
        first = asyncio.create_task(post(stack, chat(100)))
        await stack.until(inflight=1)
        leaver = await _leaver(stack, http, 10)
        await stack.until(waiting=1)
        # With Envoy stopped the admission is written, but nobody reads it before the client left.
        stack.envoy.send_signal(signal.SIGSTOP)
        try:
            await _admit_blindly(stack)
            leaver.kill()
            await leaver.wait()
        finally:
            stack.envoy.send_signal(signal.SIGCONT)
        await first
        status, _, _ = await post(stack)
        assert status == 200
        await stack.until(waiting=0, inflight=0)


async def _admit_blindly(stack: Stack) -> None:
    """Raise the limit by a reload, so that the waiter is admitted while Envoy stands still."""
    text = stack.config.read_text().replace('"initial": 1', '"initial": 5')
    stack.config.write_text(text)
    stack.policy.send_signal(signal.SIGHUP)
    await stack.until(waiting=0)


async def test_a_dead_upstream_is_a_503_at_once_and_leaves_no_lease(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        stack.backend.kill()
        await stack.backend.wait()
        for _ in range(5):
            status, _, _ = await post(stack)
            assert status == 503
        await stack.until(waiting=0, inflight=0)


async def test_listing_models_is_never_limited(tmp_path: Path) -> None:
    async with running_stack(tmp_path, fixed(1)) as stack:
        await stack.control(stall_s=2)
        call = asyncio.create_task(post(stack))
        await stack.until(inflight=1)
        async with stack.client.get(f"{stack.url}/v1/models") as answer:
            assert answer.status == 200
            assert "x-policy-class" not in answer.headers
        assert (await call)[0] == 200


@pytest.mark.parametrize("path", [PATH, "/v1/messages"])
async def test_a_refusal_speaks_the_clients_protocol(tmp_path: Path, path: str) -> None:
    full = fixed(1, room={"max_requests": 1})
    async with running_stack(tmp_path, full) as stack:
        await stack.control(stall_s=3)
        calls = [asyncio.create_task(post(stack)) for _ in range(2)]
        await stack.until(waiting=1, inflight=1)
        async with stack.client.post(stack.url + path, json=chat()) as answer:
            document = await answer.json()
            assert answer.status == 429
            assert answer.headers["x-policy-reason"] == "room_full"
            assert 1 <= int(answer.headers["retry-after"]) <= 55
            assert answer.headers["x-envoy-ratelimited"] == "true"
            assert document["error"]["type"] == "rate_limit_error"
            assert ("type" in document and document["type"] == "error") or path == PATH
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]


async def test_at_three_times_capacity_the_important_work_is_served(tmp_path: Path) -> None:
    """A short form of the bench: no 5xx, every P0 answered, every refusal a true 429."""
    async with running_stack(tmp_path, backend=("--max-num-seqs", "16")) as stack:
        params = LoadParams(
            url=stack.url, rate=60, seconds=12, tokens=50, sigma=0.9, stream=True,
            mix={"0": 0.12, "1": 0.5, "2": 0.38},
        )  # fmt: skip
        report = (await run_load(params)).as_json()
        classes = report["overall"]["classes"]
        assert report["malformed"] == 0
        assert all(c["ends"]["http_5xx"] == 0 for c in classes.values())
        assert classes["P0"]["ends"]["served"] == classes["P0"]["sent"]
        assert report["overall"]["total"]["ends"]["shed_429"] > 0
        await stack.until(waiting=0, inflight=0)


async def _leaver(
    stack: Stack, http: str, size: int, tokens: int = 5, stream: bool = False
) -> asyncio.subprocess.Process:
    """A client that the test can kill; see `tests.support.leaver`."""
    file = stack.directory / "body.json"
    file.write_text(json.dumps(chat(tokens, stream, padding="x" * size)))
    command = [sys.executable, "-m", "tests.support.leaver", http, stack.url + PATH, str(file)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def test_a_client_with_ninety_headers_is_a_client_like_any_other(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        many = {f"x_h{index}": "v" for index in range(90)}
        assert (await post(stack, None, **many))[0] == 200
        await stack.until(waiting=0, inflight=0)
