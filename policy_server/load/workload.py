"""What is sent and when: a pure function of the parameters and their seed.

Each aspect draws from a generator of its own, so that two runs with one seed see the same
arrivals even when one changes the mix or the lengths.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from policy_server.load.params import LoadParams

CHARS_PER_TOKEN = 4
_PROMPT_WORD = "lore "[:CHARS_PER_TOKEN]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: `at_s` seconds after the start of the run; `tokens` is its answer's length.

    `priority` and `tenant` are header values, "" = no header.
    """

    at_s: float
    priority: str
    tenant: str
    tokens: int


def arrivals(params: LoadParams) -> Iterator[Arrival]:
    """Poisson arrivals until `params.seconds`, in order."""
    gaps = random.Random(f"{params.seed}/arrivals")
    priority = _picker(params.mix, random.Random(f"{params.seed}/mix"))
    tenant = _picker(params.tenants, random.Random(f"{params.seed}/tenants"))
    lengths = random.Random(f"{params.seed}/lengths")
    at_s = gaps.expovariate(params.rate)
    while at_s < params.seconds:
        yield Arrival(at_s, priority(), tenant(), _length(params, lengths))
        at_s += gaps.expovariate(params.rate)


class Bodies:
    """Request bodies for the path of the URL; only the length differs between requests."""

    def __init__(self, params: LoadParams) -> None:
        prompt = _PROMPT_WORD * params.prompt_tokens
        self._template = _template(params, prompt)
        self._key = None if params.path.endswith("/embeddings") else "max_tokens"

    def of(self, arrival: Arrival) -> bytes:
        """The JSON body that asks for exactly `arrival.tokens` tokens."""
        if self._key is None:
            return self._template
        return b'{"%b":%d,%b' % (self._key.encode(), arrival.tokens, self._template[1:])


def _template(params: LoadParams, prompt: str) -> bytes:
    body: dict[str, object] = {"model": params.model}
    if params.path.endswith("/embeddings"):
        body["input"] = prompt
        return json.dumps(body).encode()
    if params.path.endswith("/v1/completions"):
        body["prompt"] = prompt
    else:
        body["messages"] = [{"role": "user", "content": prompt}]
    if params.stream:
        body["stream"] = True
        if not params.path.endswith("/messages"):
            body["stream_options"] = {"include_usage": True}
    return json.dumps(body).encode()


def _length(params: LoadParams, rng: random.Random) -> int:
    """Lognormal with mean `tokens`: exp(N(μ, σ)) has mean exp(μ + σ²/2)."""
    if params.sigma == 0:
        return params.tokens
    mu = math.log(params.tokens) - params.sigma**2 / 2
    return max(1, round(rng.lognormvariate(mu, params.sigma)))


def _picker(weights: Mapping[str, float], rng: random.Random) -> Callable[[], str]:
    if not weights:
        return lambda: ""
    names, values = list(weights), list(weights.values())
    return lambda: rng.choices(names, values)[0]
