"""A policy server whose disk is full or read-only serves those who wait, and says what is wrong."""

# ruff: noqa: ASYNC110 - other processes have no event to wait for

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.held_crowd import CHAT, Crowd, stage
from tests.support.small_disk import small_disk
from tests.support.stack import Stack

EACH = 1
"""60 requests."""


@pytest.mark.parametrize("how", ["full", "read-only"])
async def test_who_waits_is_served_without_a_disk(how: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        if not disk.mounted:
            pytest.fail("no disk may be mounted here: run the tests with CAP_SYS_ADMIN")
        data = ("--data-dir", str(disk.path / "data"))
        async with stage(tmp_path, jobs=True) as (stack, upstream):
            crowd = Crowd(stack, upstream, EACH)
            await crowd.crash(0.0, *data)  # now on the small disk
            answers = await crowd.gather()
            if how == "read-only":
                stack.policy.kill()
                await stack.policy.wait()
                disk.read_only(True)
            disk.fill()
            said = {"full": "the disk is full", "read-only": "read-only"}[how]
            await crowd.crash(0.5, *data)
            await _until_warned(stack, said)
            await _no_job_is_taken(stack)
            assert crowd.statuses == {}, "they wait"
            upstream.finish.set()
            await asyncio.gather(*answers)
            assert crowd.statuses == {200: len(answers)}
            assert crowd.released() == [ask.name for ask in crowd.asked], "in the old order"
            more = [crowd.post_one() for _ in range(60)]
            await asyncio.gather(*more)
            assert crowd.statuses == {200: len(answers) + len(more)}
            await _no_job_is_taken(stack)


async def _no_job_is_taken(stack: Stack) -> None:
    """Not even one whose answer would come at once."""
    headers = {"prefer": "respond-async", "x-request-priority": "0"}
    async with stack.client.post(f"{stack.url}{CHAT}", headers=headers, data=b"{}") as answer:
        told = (answer.status, answer.headers["x-policy-reason"])
        assert told == (503, "journal_unavailable")
        assert 1 <= int(answer.headers["retry-after"]) <= 55
        assert (await answer.json())["error"]["type"] == "server_error"


async def _until_warned(stack: Stack, said: str) -> None:
    async with asyncio.timeout(20):
        while not any(said in text for text in (await stack.status())["warnings"]):
            await asyncio.sleep(0.05)
