"""Busy, stuck, or is it us? With a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from policy_server.gateway.liveness import Patience, health_of, until_stuck
from tests.support import virtual_loop

PATIENCE = Patience(every_s=1.0, within_s=2.0, misses=3)


def stuck_after(answers: Iterator[float | None]) -> float:
    """Seconds until it is called stuck; each answer takes so long, None = none comes."""

    async def ask(within_s: float) -> bool:
        took = next(answers)
        await asyncio.sleep(within_s if took is None else took)
        return took is not None

    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await until_stuck(ask, PATIENCE)
        return asyncio.get_running_loop().time() - began

    return round(virtual_loop.run(main()), 3)


def test_three_questions_without_an_answer_are_too_many() -> None:
    assert stuck_after(iter([0.0, None, None, None])) == 1.0 + 3 * 3.0


def test_a_slow_answer_starts_the_count_again() -> None:
    assert stuck_after(iter([None, None, 1.9, None, None, 1.9, None, None, None])) == 26.8


def test_a_machine_that_stood_still_is_not_the_policy_servers_fault() -> None:
    async def frozen(within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_loop.VirtualLoop)
        questions.append(loop.time())
        loop.skip(60.0 if len(questions) <= 5 else within_s)
        return False

    questions: list[float] = []
    virtual_loop.run(until_stuck(frozen, PATIENCE))
    assert len(questions) == 5 + PATIENCE.misses


async def test_a_listener_that_takes_connections_and_says_nothing_is_no_answer() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        ask = health_of("127.0.0.1", mute.getsockname()[1])
        assert not await ask(0.05)
    assert not await ask(0.05)  # and neither is a closed one


async def test_any_answer_counts() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert await health_of("127.0.0.1", server.sockets[0].getsockname()[1])(5.0)
