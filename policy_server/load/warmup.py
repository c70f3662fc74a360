"""Warms a model server up: dummy requests of several sizes until their latency settles.

An engine that says it is healthy is often not warm: kernels compile on the first prompt of each
size, caches are empty, and the first answers take many times as long as those after them. In
rounds of one request per size:

    settled   every size took at most (1 + TOLERANCE) times its best so far, and at least
              1 / (1 + TOLERANCE) of what it took in the round before; or the difference is below
              NOISE_S

Bounded in rounds and in time. A server that refuses (it loads) is asked again until the time is
over, without using up a round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from policy_server.commands import reason

TOLERANCE = 0.25
NOISE_S = 0.03
PAUSE_S = 0.5  # between two tries of a server that is not there yet
CHARS_PER_TOKEN = 4
DEFAULT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class WarmupParams:
    """`url`: the server, or the whole URL of the endpoint. Sizes in prompt tokens, times in s."""

    url: str
    model: str = "warmup"
    sizes: tuple[int, ...] = (16, 256, 1024)
    max_tokens: int = 8
    max_rounds: int = 10
    max_s: float = 120.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"--url {self.url!r} is no URL; write for example http://127.0.0.1:8000"
            )
        if not self.sizes or min(self.sizes) < 1 or max(self.sizes) > 1_000_000:
            raise ValueError("--sizes: each size is 1 to 1000000 prompt tokens; write 16,256,1024")
        if self.max_rounds < 2:
            raise ValueError("--rounds: it takes two to see that latency has settled")
        if self.max_tokens < 1 or self.max_s <= 0.0:
            raise ValueError("--tokens and --seconds must be above 0")

    @property
    def endpoint(self) -> str:
        """Where the requests go."""
        has_path = urlsplit(self.url).path.strip("/")
        return self.url if has_path else self.url.rstrip("/") + DEFAULT_PATH


def parse_sizes(text: str) -> tuple[int, ...]:
    """`16,256` as numbers; ValueError when they are none."""
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ValueError(f"--sizes {text!r}: not numbers; write for example 16,256,1024")
    return tuple(int(part) for part in parts)


@dataclass(slots=True)
class Settling:
    """Judges the rounds. One latency per size and round, seconds."""

    sizes: Sequence[int]
    rounds: list[tuple[float, ...]] = field(default_factory=list)

    def unsettled(self) -> list[int]:
        """The sizes whose latency still moves; all of them before the second round."""
        if len(self.rounds) < 2:
            return list(self.sizes)
        best = [min(times) for times in zip(*self.rounds, strict=True)]
        before, last = self.rounds[-2], self.rounds[-1]
        return [
            size
            for size, least, was, now in zip(self.sizes, best, before, last, strict=True)
            if _differ(now, least) or _differ(was, now)
        ]


def _differ(more_s: float, less_s: float) -> bool:
    return more_s > (1.0 + TOLERANCE) * less_s and more_s - less_s > NOISE_S


class _RefusedError(Exception):
    """The server did not answer as it should; the text says how."""


async def warm_up(params: WarmupParams, say: Callable[[str], None]) -> bool:
    """Whether the server is warm in the end; every round is one line to `say`."""
    began = time.monotonic()
    settling = Settling(params.sizes)
    last = "nothing was tried"
    try:
        async with asyncio.timeout(params.max_s), aiohttp.ClientSession() as session:
            while len(settling.rounds) < params.max_rounds:
                try:
                    settling.rounds.append(await _round(session, params))
                except _RefusedError as error:
                    last = f"{params.endpoint}: {error}"
                    await asyncio.sleep(PAUSE_S)
                    continue
                last = f"{_sizes(settling.unsettled())} still move"
                say(f"round {len(settling.rounds)}: {_times(params.sizes, settling.rounds[-1])}")
                if not settling.unsettled():
                    say(f"warm after {time.monotonic() - began:.1f} s")
                    return True
    except TimeoutError:
        say(f"not warm after {params.max_s:g} s: {last}; give it more --seconds or see its log")
        return False
    say(f"not warm after {params.max_rounds} rounds: {last}; give it more --rounds")
    return False


async def _round(session: aiohttp.ClientSession, params: WarmupParams) -> tuple[float, ...]:
    return tuple([await _once(session, params, size) for size in params.sizes])


async def _once(session: aiohttp.ClientSession, params: WarmupParams, size: int) -> float:
    """Seconds for one answer, to its last byte."""
    began = time.monotonic()
    try:
        async with session.post(params.endpoint, json=_body(params, size)) as answer:
            await answer.read()
    except aiohttp.ClientConnectorError as error:
        raise _RefusedError(f"cannot connect ({reason(error.os_error)})") from None
    except aiohttp.ClientError as error:
        raise _RefusedError(str(error) or type(error).__name__) from None
    if not 200 <= answer.status < 300:
        raise _RefusedError(f"status {answer.status}")
    return time.monotonic() - began


def _body(params: WarmupParams, size: int) -> dict[str, Any]:
    text = ("warm " * (CHARS_PER_TOKEN * size // 5 + 1))[: CHARS_PER_TOKEN * size]
    return {
        "model": params.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": params.max_tokens,
        "temperature": 0,
        "stream": False,
    }


def _times(sizes: Sequence[int], times: Sequence[float]) -> str:
    pairs = zip(sizes, times, strict=True)
    return ", ".join(f"{size} tokens {seconds:.3f} s" for size, seconds in pairs)


def _sizes(sizes: Sequence[int]) -> str:
    return "prompts of " + ", ".join(str(size) for size in sizes) + " tokens"
