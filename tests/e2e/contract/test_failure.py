"""The policy server dies, is stopped, or is not there: what the wiring promises, and no more."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from policy_server.envoy_config.options import Wiring
from tests.e2e.contract.conftest import WIRINGS
from tests.support import wired
from tests.support.echo_upstream import running_upstream
from tests.support.gateway_command import running_gateway
from tests.support.live import CHAT, P0, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
HELD = 40


async def test_a_crash_costs_nobody_who_waits(live: Live) -> None:
    first = await live.busy()
    held = [live.start_post() for _ in range(HELD)]
    await live.until(waiting=HELD, inflight=1)
    await live.kill_policy()
    await live.start_policy()
    live.echo.finish.set()
    assert {(await task).status for task in held} == {200}
    await first


async def test_a_crash_before_an_answer_begins(live: Live) -> None:
    """Single streams: Envoy answers 503 with a Retry-After. Else nobody notices."""
    first = await live.busy()
    await live.kill_policy()
    live.echo.finish.set()
    answer = await first
    assert answer.status == (200 if live.survives else 503)
    if not live.survives:
        assert answer.headers["x-policy-reason"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("via", ["near", "open"])
async def test_a_crash_in_mid_answer(live: Live, via: str) -> None:
    """Single streams and fail-closed: the answer is cut. Else nobody notices."""
    first = await live.busy("/half", via)
    await live.kill_policy()
    if live.survives or via == "open":
        live.echo.finish.set()
    answer = await first
    assert answer.status == 200
    assert answer.broken == (not live.survives and via == "near")


async def test_a_restart_hands_over_who_waits_and_cuts_nobody(live: Live) -> None:
    first = await live.busy("/half")
    held = [live.start_post() for _ in range(HELD)]
    await live.until(waiting=HELD, inflight=1)
    live.policy.send_signal(signal.SIGTERM)
    assert await live.policy.wait() == 0
    await live.start_policy()
    live.echo.finish.set()
    answers = [await task for task in (first, *held)]
    assert {answer.status for answer in answers} == {200}
    assert not answers[0].broken
    assert answers[0].body == b"data: {}\n\n" * 3


async def test_a_gateway_that_stops_answers_who_waits_and_finishes_the_rest(live: Live) -> None:
    await live.kill_policy()
    await live.start_policy("--mode", "gateway")
    first = await live.busy("/half")
    held = [live.start_post() for _ in range(HELD)]
    await live.until(waiting=HELD, inflight=1)
    live.policy.send_signal(signal.SIGTERM)
    answers = [await task for task in held]
    assert {answer.status for answer in answers} == {503}
    assert {answer.headers["x-policy-reason"] for answer in answers} == {"draining"}
    assert live.policy.returncode is None
    live.echo.finish.set()
    answer = await first
    assert (answer.status, answer.broken) == (200, False)
    assert await asyncio.wait_for(live.policy.wait(), 20) == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_an_outage_is_a_503_that_says_when(live: Live, path: str) -> None:
    await live.kill_policy()
    answer = await live.post(path, via="hasty")
    assert answer.status == 503
    assert answer.headers["x-policy-reason"] == "overloaded"
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("5", "5000")
    kind = "overloaded_error" if path == "/v1/messages" else "server_error"
    assert answer.document["error"]["type"] == kind
    async with live.client.get(live.url_of("/v1/models")) as models:
        assert models.status == 200


async def test_an_outage_that_is_open_lets_pass(live: Live) -> None:
    first = await live.busy()
    held = [live.start_post(via="open") for _ in range(5)]
    await live.until(waiting=5, inflight=1)
    await live.kill_policy()
    held += [live.start_post(via="open") for _ in range(5)]
    assert {(await task).status for task in held} == {200}
    live.echo.finish.set()
    await first


@pytest.mark.parametrize("wiring", WIRINGS)
async def test_the_gateway_command(wiring: Wiring, tmp_path: Path) -> None:
    where = wired.ports()
    async with (
        running_upstream(where["upstream"]),
        running_gateway(tmp_path, where, "--wiring", wiring) as gateway,
        aiohttp.ClientSession() as http,
    ):
        for _ in range(2):
            async with http.post(gateway.url + CHAT, headers=P0) as answer:
                assert answer.status == 200
                assert answer.headers["x-policy-class"] == "P0"
            active, _ = await gateway.until_policy_pids(2)
            await asyncio.create_subprocess_exec("kill", "-9", str(active))


@pytest.mark.parametrize(
    ("path", "kind"),
    [(CHAT, "server_error"), ("/v1/messages", "api_error"), ("/x", "server_error")],
)
async def test_a_model_server_that_is_not_there_is_an_error_that_clients_can_read(
    live: Live, path: str, kind: str
) -> None:
    """With a time to come back, and without a reason of the gateway's: it refused nothing."""
    async with live.client.post(live.url_of(path, "hasty"), headers=P0) as answer:
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        assert answer.headers["content-type"] == "application/json"
        assert "x-policy-reason" not in answer.headers
        told = await answer.json()
    assert told["error"]["type"] == kind
    assert "reset reason" in told["detail"]


async def test_a_body_that_is_too_large_is_an_error_that_clients_can_read(live: Live) -> None:
    answer = await live.post(data=b"x" * (33 * 1024 * 1024))
    assert answer.status == 413
    assert answer.document["error"]["type"] == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"
    await live.until(waiting=0, inflight=0)
