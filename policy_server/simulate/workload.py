"""What the clients want: calls with a time, a class, a tenant and token counts, in order of time.

A `Flow` is one kind of client: an open-loop Poisson process whose rate is a step function of
time. Every flow draws from its own random stream, so two policies under one seed meet the same
calls, and changing one flow leaves the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from random import Random

from policy_server.core.request import Priority
from policy_server.simulate.seeds import stream

MAX_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal token counts: means in tokens, sigmas of the logarithm.

    `long_share` of the prompts has `long_prompt` tokens instead.
    """

    prompt: float = 400.0
    prompt_sigma: float = 0.6
    output: float = 200.0
    output_sigma: float = 0.6
    long_share: float = 0.0
    long_prompt: int = 8000

    def draw(self, rng: Random) -> tuple[int, int]:
        """Prompt and output tokens of one call, each ≥ 1."""
        prompt = _lognormal(rng, self.prompt, self.prompt_sigma)
        output = _lognormal(rng, self.output, self.output_sigma)
        if self.long_share and rng.random() < self.long_share:
            prompt = self.long_prompt
        return prompt, output


def _lognormal(rng: Random, mean: float, sigma: float) -> int:
    value = math.exp(rng.gauss(math.log(mean) - sigma * sigma / 2, sigma)) if sigma else mean
    return min(MAX_TOKENS, max(1, round(value)))


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client behaves.

    sdk           retries a refusal twice as the OpenAI and Anthropic SDKs do
    streamed      asks for a streamed answer
    patience_s    leaves when no first token (streamed) or answer came by then; None = never
    quit_share    share of the clients that hang up in the middle of the answer
    max_wait_s    wait budget beyond which the answer is of no use; None = the class budget
    """

    sdk: bool = False
    streamed: bool = True
    patience_s: float | None = None
    quit_share: float = 0.0
    max_wait_s: float | None = None


PATIENT = Manner()


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of client: `rate` and `lengths` are steps (from second, value)."""

    rate: tuple[tuple[float, float], ...]
    priority: Priority = Priority.P1
    tenant: str = ""
    lengths: tuple[tuple[float, Lengths], ...] = ((0.0, Lengths()),)
    manner: Manner = PATIENT
    model: str = ""


@dataclass(slots=True, eq=False)
class Call:
    """What one client wants, however many attempts it takes."""

    at: float
    priority: Priority
    tenant: str
    prompt: int
    output: int
    manner: Manner = PATIENT
    model: str = ""


def steady(rate: float) -> tuple[tuple[float, float], ...]:
    """A rate that never changes."""
    return ((0.0, rate),)


def calls_of(flows: Sequence[Flow], seed: int, until: float) -> Iterator[Call]:
    """The calls of all flows before `until`, in order of time."""
    streams = (_flow_calls(f, stream(seed, f"flow{i}"), until) for i, f in enumerate(flows))
    return merge(*streams, key=lambda call: call.at)


def _flow_calls(flow: Flow, rng: Random, until: float) -> Iterator[Call]:
    lengths = [*flow.lengths]
    for at in _poisson(flow.rate, rng, until):
        while len(lengths) > 1 and lengths[1][0] <= at:
            lengths.pop(0)
        prompt, output = lengths[0][1].draw(rng)
        yield Call(at, flow.priority, flow.tenant, prompt, output, flow.manner, flow.model)


def _poisson(rate: Sequence[tuple[float, float]], rng: Random, until: float) -> Iterator[float]:
    for index, (start, per_s) in enumerate(rate):
        end = min(until, rate[index + 1][0] if index + 1 < len(rate) else until)
        at = start
        # Memoryless: beginning afresh at each step of the rate changes nothing.
        while per_s > 0:
            at += rng.expovariate(per_s)
            if at >= end:
                break
            yield at
