"""Warms a model server up: dummy requests of several sizes until their latency settles.

An engine that says it is healthy is often not warm: kernels compile on the first prompt of each
size, caches are empty, and the first answers take many times as long as those after them. In
rounds of one request per size:

    settled   every size took at most (1 + TOLERANCE) times its best so far, and at least
              1 / (1 + TOLERANCE) of what it took in the round before; or the difference is below
              NOISE_S

Bounded in rounds and in time. A server that refuses for now (it loads) is asked again until the
time is over, without using up a round; one that refuses for ever ends it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from policy_server.load.warmup_asks import Asker, HopelessError, RefusedError
from policy_server.load.warmup_params import WarmupParams

TOLERANCE = 0.25
NOISE_S = 0.03
PAUSE_S = 0.5  # between two tries of a server that is not there yet
Say = Callable[[str], None]


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


async def warm_up(params: WarmupParams, say: Say) -> bool:
    """Whether the server is warm in the end; every round is one line to `say`."""
    no_limit = aiohttp.ClientTimeout(total=None)  # `max_s` is the limit, of all requests together
    async with aiohttp.ClientSession(timeout=no_limit) as session:
        warming = _Warming(params, Asker(session, params), say)
        try:
            async with asyncio.timeout(params.max_s):
                return await warming.run()
        except TimeoutError:
            say(
                f"not warm after {params.max_s:g} s: {warming.state()}; "
                "give it more --seconds or see its log"
            )
        except HopelessError as error:
            say(f"not warm, and never will be: {error}")
    return False


class _Warming:
    """The rounds, and the last that was heard."""

    def __init__(self, params: WarmupParams, asker: Asker, say: Say) -> None:
        self._params, self._asker, self._say = params, asker, say
        self._settling = Settling(params.sizes)
        self._last = ""

    async def run(self) -> bool:
        """False = the rounds are used up. Raises HopelessError."""
        began, rounds = time.monotonic(), self._settling.rounds
        while len(rounds) < self._params.max_rounds:
            try:
                rounds.append(await self._asker.round())
            except RefusedError as error:
                self._last = str(error)
                await asyncio.sleep(PAUSE_S)
                continue
            unsettled = self._settling.unsettled()
            self._last = f"{_sizes(unsettled)} still move"
            self._say(f"round {len(rounds)}: {_times(self._params.sizes, rounds[-1])}")
            if not unsettled:
                self._say(f"warm after {time.monotonic() - began:.1f} s")
                return True
        self._say(f"not warm after {len(rounds)} rounds: {self._last}; give it more --rounds")
        return False

    def state(self) -> str:
        """What there is to say when the time is over."""
        return "; ".join(filter(None, (self._last, self._asker.hung))) or "nothing was tried"


def _times(sizes: Sequence[int], times: Sequence[float]) -> str:
    pairs = zip(sizes, times, strict=True)
    return ", ".join(f"{size} tokens {seconds:.3f} s" for size, seconds in pairs)


def _sizes(sizes: Sequence[int]) -> str:
    return "prompts of " + ", ".join(str(size) for size in sizes) + " tokens"
