"""Twenty crashes, each at another moment, with a thousand requests held."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.held_crowd import Crowd, stage

ROUNDS = 20
SEED = 7


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_killed_at_any_moment_they_go_in_the_order_of_a_run_without_a_crash(
    number: int, tmp_path: Path
) -> None:
    rng = random.Random(SEED * 1_000 + number)
    async with stage(tmp_path) as (stack, upstream):
        crowd = Crowd(stack, upstream)
        answers = await crowd.gather()
        if number:  # the first round: before anyone has gone
            upstream.finish.set()
            await crowd.until_released(rng.randrange(1, len(crowd.asked) - 10))
        await crowd.crash()
        upstream.finish.set()
        await asyncio.gather(*answers)
        assert crowd.statuses == {200: len(answers)}
        assert crowd.released() == [ask.name for ask in crowd.asked]


async def test_the_order_of_a_run_without_a_crash(tmp_path: Path) -> None:
    async with stage(tmp_path) as (stack, upstream):
        crowd = Crowd(stack, upstream)
        answers = await crowd.gather()
        upstream.finish.set()
        await asyncio.gather(*answers)
        assert crowd.released() == [ask.name for ask in crowd.asked]
