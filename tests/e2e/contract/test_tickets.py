"""A place in writing: good once, for whom it was given, whatever the wiring and over a crash."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.support.live import CHAT, Answer, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")
NOW = {"prefer": "wait=0"}
A = {"x-tenant-id": "a"}


async def refused(live: Live, **headers: str) -> str:
    """A refusal's ticket."""
    answer = await live.post(headers={**NOW, **A, **headers})
    assert answer.status == 429, answer.body
    ticket: str = answer.headers["x-queue-ticket"]
    return ticket


async def outcomes(live: Live) -> dict[str, int]:
    """`policy_tickets_total` by outcome."""
    url = f"http://127.0.0.1:{live.where['http']}/metrics"
    async with live.client.get(url) as page:
        text = await page.text()
    found = re.findall(r'^policy_tickets_total\{outcome="(\w+)"\} (\d+)', text, re.M)
    return {name: int(value) for name, value in found}


async def grew(live: Live, before: dict[str, int]) -> dict[str, int]:
    """What was counted since."""
    after = await outcomes(live)
    return {name: n for name in after if (n := after[name] - before.get(name, 0))}


def wait(live: Live, name: str, **headers: str) -> asyncio.Task[Answer]:
    return live.start_post(f"{CHAT}?{name}", headers={**A, **headers})


async def order(live: Live, first: asyncio.Task[Answer], *held: asyncio.Task[Answer]) -> list[str]:
    """Who reached the model server, in order."""
    before = len(live.echo.requests)
    live.echo.finish.set()
    answers = await asyncio.gather(first, *held)
    assert {answer.status for answer in answers} == {200}
    return [request.query_string for request in live.echo.requests[before:]]


async def test_who_shows_its_ticket_has_its_place_back(live: Live) -> None:
    before = await outcomes(live)
    first = await live.busy()
    ticket = await refused(live)
    late = wait(live, "late")
    await live.until(waiting=1, inflight=1)
    senior = wait(live, "senior", **{"x-queue-ticket": ticket})
    await live.until(waiting=2, inflight=1)
    assert await order(live, first, late, senior) == ["senior", "late"]
    assert await grew(live, before) == {"issued": 1, "honoured": 1}


@pytest.mark.parametrize(
    ("who", "counted"),
    [
        ({"x-tenant-id": "b"}, "invalid"),
        ({"x-request-priority": "1"}, "invalid"),
        ({}, "used"),
    ],
)
async def test_any_other_use_gains_nothing(live: Live, who: dict[str, str], counted: str) -> None:
    first = await live.busy()
    ticket = await refused(live)
    if counted == "used":
        await live.post(headers={**NOW, **A, "x-queue-ticket": ticket})
    before = await outcomes(live)
    held = [wait(live, "late", **who)]
    await live.until(waiting=1, inflight=1)
    held.append(wait(live, "sly", **who, **{"x-queue-ticket": ticket}))
    await live.until(waiting=2, inflight=1)
    assert await order(live, first, *held) == ["late", "sly"]
    assert await grew(live, before) == {counted: 1}


async def test_a_forged_ticket_is_no_error(live: Live) -> None:
    for forged in ("x", "A" * 51, "=" * 51, "é" * 51, "a, b", "0" * 8000):
        answer = await live.post(headers={**A, "x-queue-ticket": forged})
        assert answer.status == 200
    await live.until(waiting=0, inflight=0)


async def test_a_ticket_outlives_a_crash_and_a_used_one_stays_used(live: Live) -> None:
    first = await live.busy()
    used, kept = await refused(live), await refused(live)
    await live.post(headers={**NOW, **A, "x-queue-ticket": used})
    await live.kill_policy()
    await live.start_policy()
    before = await outcomes(live)
    for ticket in (used, kept):
        answer = await live.post(headers={**NOW, **A, "x-queue-ticket": ticket})
        assert answer.status in (200, 429)  # the slot may be known to be taken still
    counted = await grew(live, before)
    assert (counted["used"], counted["honoured"]) == (1, 1)
    live.echo.finish.set()
    assert ((await first).status == 200) or not live.survives
