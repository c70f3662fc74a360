"""Background work goes on whatever it meets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from policy_server.lasting import FIRST_PAUSE_S, LONGEST_PAUSE_S, lasting
from tests.support.virtual_loop import run


class Work:
    """Runs for `lives` seconds each time, then fails; the last one returns."""

    def __init__(self, *lives: float) -> None:
        self.lives = list(lives)
        self.began: list[float] = []
        self.said: list[dict[str, Any]] = []

    async def __call__(self) -> None:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.lives.pop(0))
        if self.lives:
            raise KeyError("a mistake")

    async def last(self) -> list[float]:
        """Seconds between one beginning and the next."""
        asyncio.get_running_loop().set_exception_handler(lambda _, told: self.said.append(told))
        await lasting("the work", self)
        return [b - a for a, b in zip(self.began, self.began[1:], strict=False)]


def test_it_begins_again_later_and_later_and_says_so() -> None:
    work = Work(*[0.0] * 9, 5.0)
    pauses = run(work.last())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, 60.0]
    assert len(work.said) == 9
    assert work.said[1]["message"] == "the work broke off, and begins again in 2 s"
    assert isinstance(work.said[1]["exception"], KeyError)


def test_after_a_good_while_it_begins_again_soon() -> None:
    pauses = run(Work(0.0, 0.0, LONGEST_PAUSE_S + 1.0, 0.0).last())
    assert pauses[2] == LONGEST_PAUSE_S + 1.0 + FIRST_PAUSE_S


def test_it_ends_when_it_is_cancelled() -> None:
    async def cancelled() -> None:
        work = Work(1e9, 0.0)
        task = asyncio.create_task(lasting("the work", work))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(work.began) == 1

    run(cancelled())
