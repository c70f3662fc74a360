"""Admit, hold, refuse, end, crash: through the filter chains that meshes make of our objects."""

from __future__ import annotations

import asyncio

import pytest
from yarl import URL

from policy_server.envoy_config.bootstrap import RUNTIME
from tests.e2e.mesh.conftest import LiveMesh
from tests.support.live import (
    CHAT,
    P0,
    goes_at_once_and_gives_its_slot_back,
    passes_ungoverned_while_all_is_taken,
)
from tests.support.mesh import istio

pytestmark = pytest.mark.asyncio(loop_scope="session")
NOW = {"prefer": "wait=0"}
HELD = 3  # slots of an access log without our flush interval come back a second late each
THREE_MB = b'{"model": "m", "pad": "' + b"x" * 3_000_000 + b'"}'


async def test_a_request_goes_at_once_and_gives_its_slot_back(live: LiveMesh) -> None:
    forged = {"x-policy-observe": "1"} if live.mesh.cleans else {}
    await goes_at_once_and_gives_its_slot_back(live, **forged)


async def test_what_is_not_governed_passes(live: LiveMesh) -> None:
    await passes_ungoverned_while_all_is_taken(live)


async def test_a_path_is_the_same_to_the_gateway_as_to_the_model_server(live: LiveMesh) -> None:
    """However a client writes it, or it would get around `govern.paths`."""
    url = URL(live.url_of("/v1%2Fchat//x/../%63ompletions"), encoded=True)
    async with live.client.post(url, headers=P0) as answer:
        assert answer.headers["x-policy-class"] == "P0"
        assert (await answer.json())["path"].replace("%63", "c") == "/v1/chat/completions"


async def test_those_who_wait_go_one_after_another(live: LiveMesh) -> None:
    first = await live.busy()
    json = {"content-type": "application/json", "x-request-id": "one-agent"}
    held = [live.start_post(headers=json, data=THREE_MB) for _ in range(2)]
    await live.until(waiting=2, inflight=1)
    live.echo.finish.set()
    answers = [await task for task in (first, *held)]
    assert {answer.status for answer in answers} == {200}
    assert all(int(answer.headers["x-queue-wait-ms"]) > 0 for answer in answers[1:])
    assert {answer.document["bytes"] for answer in answers[1:]} == {len(THREE_MB)}


async def test_a_uid_that_clients_write_is_no_identity(live: LiveMesh) -> None:
    same = {"x-policy-uid": "forged", "x-request-id": "one-agent"}
    first = live.start_post("/slow", headers=same)
    await live.until(waiting=0, inflight=1)
    held = [live.start_post(headers=same) for _ in range(2)]
    await live.until(waiting=2, inflight=1)
    live.echo.finish.set()
    assert {(await task).status for task in (first, *held)} == {200}
    await live.until(waiting=0, inflight=0)


async def test_a_refusal_says_why_and_when(live: LiveMesh) -> None:
    first = await live.busy()
    answer = await live.post(json={"model": "m"}, headers=NOW)
    assert answer.status == 429
    assert answer.headers["x-policy-reason"] == "predicted_wait"
    assert 1 <= int(answer.headers["retry-after"]) <= 55
    assert answer.headers.getall("content-type") == ["application/json"]
    assert answer.document["error"]["type"] == "rate_limit_error"
    assert answer.headers.get("x-envoy-ratelimited") == ("true" if live.mesh.labelled else None)
    live.echo.finish.set()
    await first


async def test_a_client_that_leaves_frees_its_place_and_its_slot(live: LiveMesh) -> None:
    first = await live.busy("/half")
    held = live.start_post()
    await live.until(waiting=1, inflight=1)
    held.cancel()
    await live.until(waiting=0, inflight=1)
    first.cancel()
    await live.until(waiting=0, inflight=0)


async def test_an_answer_as_it_is_made_holds_its_slot_to_its_end(live: LiveMesh) -> None:
    async with live.client.post(
        live.url_of("/half"), headers={"x-request-priority": "0"}
    ) as answer:
        assert await answer.content.readany() == b"data: {}\n\n"
        await live.until(waiting=0, inflight=1)
        live.echo.finish.set()
        assert await answer.read() == b"data: {}\n\n" * 2
    await live.until(waiting=0, inflight=0)


async def test_a_crash_while_others_wait(live: LiveMesh) -> None:
    """Envoy asks again, except where Istio offers no retries: there it answers 503."""
    first = await live.busy()
    held = [live.start_post() for _ in range(HELD)]
    await live.until(waiting=HELD, inflight=1)
    await live.kill_policy()
    await live.start_policy()
    live.echo.finish.set()
    statuses = {(await task).status for task in held}
    assert statuses == ({200} if live.mesh.survives_crash else {503})
    await first


async def test_a_crash_in_mid_answer(live: LiveMesh) -> None:
    first = await live.busy("/half")
    await live.kill_policy()
    if live.mesh.lasting_answers:
        live.echo.finish.set()
    answer = await first
    assert answer.status == 200
    assert answer.broken == (not live.mesh.lasting_answers)


async def test_an_outage_is_a_503_and_what_is_not_governed_passes(live: LiveMesh) -> None:
    await live.kill_policy()
    answer = await live.post(CHAT, via="hasty")
    assert answer.status == 503
    if live.mesh.wiring != "authz" or live.mesh.target != "istio":
        assert answer.headers["x-policy-reason"] == "overloaded"
        assert answer.headers["retry-after"] == "5"
        assert answer.document["error"]["type"] == "server_error"
    async with live.client.get(live.url_of("/v1/models", "hasty")) as models:
        assert models.status == 200


async def test_an_outage_that_is_open_lets_pass(live: LiveMesh) -> None:
    first = await live.busy()
    held = [live.start_post(via="open") for _ in range(5)]
    await live.until(waiting=5, inflight=1)
    await live.kill_policy()
    held += [live.start_post(via="open") for _ in range(5)]
    assert {(await task).status for task in held} == {200}
    live.echo.finish.set()
    await asyncio.gather(first, return_exceptions=True)


async def test_the_gateways_own_access_log_goes_on(live: LiveMesh) -> None:
    """For governed and other requests alike, beside the log that the policy server reads."""
    async with live.client.get(live.url_of("/v1/models?mine")) as models:
        assert models.status == 200
    assert (await live.post(f"{CHAT}?mine")).status == 200
    said = live.directory / "near" / "stdout"
    async with asyncio.timeout(20):
        while said.read_text().count("?mine") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    lines = [line for line in said.read_text().splitlines() if "?mine" in line]
    assert sorted("POST" in line for line in lines) == [False, True]


async def test_the_guard_that_kills_envoy_is_off_and_stays_off(live: LiveMesh) -> None:
    """With a later Envoy, too: it is said, not left to a default. Only ext_proc has it."""
    async with live.client.get(f"{live.admin['near']}/runtime") as page:
        said = (await page.json(content_type=None))["entries"]
    (guard,) = RUNTIME
    told = said.get(guard, {}).get("final_value")
    asks = str(live.mesh)
    assert told == (None if asks == "istio-authz" else "false"), said


async def test_gate_and_log_of_a_proxy_say_the_same_name(live: LiveMesh) -> None:
    """Or its leases would be freed when its log falls silent while another proxy's talks."""
    first = await live.busy()
    nodes = {one["node"]: one["leases"] for one in (await live.status())["nodes"]}
    named = istio.NODE if str(live.mesh) == "istio-gate" else ""  # no name: no log's silence counts
    assert {node: leases for node, leases in nodes.items() if leases} == {named: 1}
    live.echo.finish.set()
    await first
