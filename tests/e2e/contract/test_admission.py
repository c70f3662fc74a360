"""Admit, hold, refuse: the same answers whatever the wiring."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from tests.support.live import (
    CHAT,
    P0,
    Answer,
    Live,
    goes_at_once_and_gives_its_slot_back,
    passes_ungoverned_while_all_is_taken,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
NOW = {"prefer": "wait=0"}


async def test_a_request_goes_at_once_and_gives_its_slot_back(live: Live) -> None:
    await goes_at_once_and_gives_its_slot_back(live)


async def test_what_is_not_governed_passes(live: Live) -> None:
    await passes_ungoverned_while_all_is_taken(live)


async def test_those_who_wait_go_one_after_another(live: Live) -> None:
    first = await live.busy()
    held = [live.start_post(headers={"x-request-id": "one-agent"}) for _ in range(5)]
    await live.until(waiting=5, inflight=1)
    live.echo.finish.set()
    answers = [await task for task in (first, *held)]
    assert {answer.status for answer in answers} == {200}
    assert all(int(answer.headers["x-queue-wait-ms"]) > 0 for answer in answers[1:])


async def test_the_more_important_goes_first(live: Live) -> None:
    first = await live.busy()
    low = await waiting_p2(live)
    high = live.start_post()
    await live.until(waiting=2)
    live.echo.finish.set()
    answers = await asyncio.gather(first, high, low)
    assert [answer.headers["x-policy-class"] for answer in answers] == ["P0", "P0", "P2"]
    order = [r.headers.get("x-request-priority") for r in live.echo.requests[-2:]]
    assert order == ["0", "2"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_refusal_is_a_429_in_the_clients_own_words(live: Live, path: str) -> None:
    first = await live.busy()
    answer = await live.post(path, json={"model": "m"}, headers=NOW)
    assert answer.status == 429
    headers = answer.headers
    assert headers["x-policy-reason"] == "predicted_wait"
    assert 1 <= int(headers["retry-after"]) <= 55
    assert int(headers["retry-after"]) == -(-int(headers["retry-after-ms"]) // 1000)
    assert headers["x-envoy-ratelimited"] == "true"
    assert headers.getall("content-type") == ["application/json"]
    assert answer.document["error"]["type"] == "rate_limit_error"
    assert (answer.document["type"] == "error") == (path == "/v1/messages")
    live.echo.finish.set()
    await first


async def test_a_grpc_caller_is_refused_with_a_grpc_status(live: Live) -> None:
    first = await live.busy()
    call = grpc_call(live)(b"x", metadata=[("prefer", "wait=0"), *P0.items()])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "try again" in str(refused.value.details())
    initial: Any = await call.initial_metadata()
    trailing: Any = await call.trailing_metadata()
    assert "grpc-retry-pushback-ms" in {key for key, _ in (*initial, *trailing)}
    live.echo.finish.set()
    await first


async def test_a_grpc_caller_waits_and_is_answered(live: Live) -> None:
    first = await live.busy()
    call = asyncio.create_task(_awaited(grpc_call(live)(b"hello", metadata=[*P0.items()])))
    await live.until(waiting=1, inflight=1)
    live.echo.finish.set()
    assert await call == b"hello"
    await first


async def test_errors_of_a_grpc_model_server_are_errors_not_fast_answers(live: Live) -> None:
    """Their HTTP status is 200: without a body as headers, behind one as trailers."""
    target = live.envoys["grpc"].url.removeprefix("http://")
    async with grpc.aio.insecure_channel(target) as channel:

        async def full() -> None:
            await channel.unary_unary("/t.T/Full")(b"x", metadata=[*P0.items()])

        async def breaks() -> None:
            async for part in channel.unary_stream("/t.T/Breaks")(b"x", metadata=[*P0.items()]):
                assert part == b"begun"

        for failing in (full, breaks):
            await seen_errors(live, failing)


async def seen_errors(live: Live, failing: Callable[[], Awaitable[object]]) -> None:
    """Call until a window of the limit has seen nothing but errors."""
    async with asyncio.timeout(30):
        while await error_share(live) < 1.0:
            await asyncio.gather(*(failed(failing) for _ in range(2)))
        while await error_share(live) > 0.0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # for the next window, which is empty


async def error_share(live: Live) -> float:
    """Of the answers of the last window."""
    window = (await live.pool())["last_window"]
    return 0.0 if window is None else float(window["error_share"])


async def failed(call: Callable[[], Awaitable[object]]) -> None:
    """A call that must fail by the model server's word."""
    with pytest.raises(grpc.aio.AioRpcError, match="engine"):
        await call()


async def test_two_envoys_share_one_room(live: Live) -> None:
    first = await live.busy(via="other")
    held = live.start_post(via="near")
    await live.until(waiting=1, inflight=1)
    live.echo.finish.set()
    assert ((await first).status, (await held).status) == (200, 200)


async def test_a_model_server_that_is_down_is_a_503_and_costs_no_slot(live: Live) -> None:
    for _ in range(2):
        answer = await live.post(via="hasty")
        assert answer.status == 503
        assert "x-policy-reason" not in answer.headers
        await live.until(waiting=0, inflight=0)


async def waiting_p2(live: Live) -> asyncio.Task[Answer]:
    """A P2 request in the room, which takes another try while the policy server lags."""
    async with asyncio.timeout(30):
        while True:
            task = live.start_post(headers={"x-request-priority": "2"})
            while not task.done():
                if sum((await live.pool())["waiting"].values()) == 1:
                    return task
            assert task.result().headers["x-policy-reason"] == "overloaded"


async def test_a_grpc_stream_talks_while_it_is_asked(live: Live) -> None:
    """Its request lasts as long as its answer: nobody may wait for the end of it."""
    async with grpc.aio.insecure_channel(address_of(live)) as channel:
        call = channel.stream_stream("/t.T/Talk")(metadata=[*P0.items()])
        for word in (b"one", b"two"):
            await call.write(word)
            assert await call.read() == word
        await live.until(waiting=0, inflight=1)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    await live.until(waiting=0, inflight=0)


def address_of(live: Live) -> str:
    """The Envoy in front of the gRPC model server."""
    return live.envoys["grpc"].url.removeprefix("http://")


def grpc_call(live: Live) -> grpc.aio.UnaryUnaryMultiCallable:
    """The method of the gRPC model server, through Envoy."""
    channel = grpc.aio.insecure_channel(live.envoys["grpc"].url.removeprefix("http://"))
    return channel.unary_unary("/t.T/Do")


async def _awaited(call: grpc.aio.UnaryUnaryCall) -> bytes:
    answer: bytes = await call
    return answer
