"""kill -9 with a thousand requests held: nobody notices, and nobody loses the place in line. So it
is with SIGTERM."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.held_crowd import Crowd, stage


async def test_a_crash_changes_neither_the_answers_nor_their_order(tmp_path: Path) -> None:
    async with stage(tmp_path) as (stack, upstream):
        crowd = Crowd(stack, upstream)
        answers = await crowd.gather()
        assert len(answers) > 1_000
        upstream.finish.set()
        await crowd.until_released(100)
        await crowd.crash()
        await asyncio.gather(*answers)
        assert crowd.statuses == {200: len(answers)}
        assert crowd.released() == [ask.name for ask in crowd.asked]


async def test_nor_does_a_restart_while_answers_end(tmp_path: Path) -> None:
    async with stage(tmp_path) as (stack, upstream):
        crowd = Crowd(stack, upstream, each=3)
        answers = await crowd.gather()
        upstream.finish.set()
        for released in (20, 80):
            await crowd.until_released(released)
            await crowd.restart(0.5)
        await asyncio.gather(*answers)
        assert crowd.statuses == {200: len(answers)}
        assert crowd.released() == [ask.name for ask in crowd.asked]
