"""Bytes in memory: never more than the bound and one, and somebody always goes on."""

from __future__ import annotations

import asyncio
import random

import pytest

from policy_server.memory import Memory, Share


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_fits_is_had_at_once_and_given_back() -> None:
    memory = Memory(10)
    with memory.share() as share:
        assert await share.grow(6) is False
        assert await share.grow(4) is False
        share.shrink_to(5)
        assert memory.used == 5
    assert memory.used == 0


async def test_one_goes_over_and_the_others_wait_for_it() -> None:
    memory = Memory(10)
    with memory.share() as other:
        with memory.share() as first:
            await first.grow(9)
            assert await first.grow(9) is False
            waits = asyncio.create_task(other.grow(5))
            await settle()
            assert not waits.done()
            assert await first.grow(1) is False
        assert await waits is True
        assert memory.used == 5


async def test_who_has_waited_longest_goes_over_next() -> None:
    memory = Memory(10)
    shares = [memory.share() for _ in range(4)]
    for share in shares[:2]:
        await share.grow(9)
    waits = [asyncio.create_task(share.grow(20)) for share in shares[2:]]
    await settle()
    shares[1].__exit__(None, None, None)
    await settle()
    assert [task.done() for task in waits] == [True, False]
    shares[2].__exit__(None, None, None)
    assert await waits[1] is True
    for share in shares:
        share.__exit__(None, None, None)
    assert memory.used == 0


@pytest.mark.parametrize("granted_first", [False, True])
async def test_who_leaves_while_it_waits_holds_nothing(*, granted_first: bool) -> None:
    memory = Memory(10)
    with memory.share() as first, memory.share() as over:
        await first.grow(9)
        await over.grow(9)

        async def hold() -> None:
            with memory.share() as share:
                await share.grow(9)

        gone = asyncio.create_task(hold())
        await settle()
        if granted_first:
            over.shrink_to(0)
            first.shrink_to(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    assert memory.used == 0
    assert not memory._waiting


async def test_many_with_more_than_fits_all_end_within_the_bound() -> None:
    memory, rng, most = Memory(100), random.Random(1), 0

    async def one() -> None:
        nonlocal most
        with memory.share() as share:
            while share.held < 60:
                await share.grow(rng.randrange(1, 9))
                most = max(most, memory.used)
                await asyncio.sleep(0)

    async with asyncio.timeout(20):
        await asyncio.gather(*(one() for _ in range(200)))
    assert 90 < most <= 100 + 68
    assert memory.used == 0


def test_a_share_is_its_own_key() -> None:
    memory = Memory(1)
    assert len({Share(memory), Share(memory)}) == 2
