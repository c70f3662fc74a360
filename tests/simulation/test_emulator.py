"""The simulator's engine and the bundled emulator's are two models of one thing: they agree."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from policy_server.backend import engine as emulator
from policy_server.backend.params import EngineParams as EmulatorParams
from policy_server.simulate.backend import Answer
from policy_server.simulate.engine import BatchEngine, EngineParams
from policy_server.simulate.loop import Loop
from policy_server.simulate.record import mean

Jobs = list[tuple[float, int, int]]


class Ends:
    """Notes when each answer began and ended."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}

    def first_token(self, answer: Answer) -> None:
        self.first[int(answer.uid)] = self._loop.now

    def finished(self, answer: Answer) -> None:
        self.last[int(answer.uid)] = self._loop.now

    def failed(self, answer: Answer) -> None:
        raise AssertionError("nothing fails here")


def simulated(jobs: Jobs, slots: int, kv_tokens: int) -> tuple[dict[int, float], dict[int, float]]:
    loop = Loop()
    ends = Ends(loop)
    params = EngineParams(prefill_token_s=1 / 30_000, slots=slots, kv_tokens=kv_tokens)
    engine = BatchEngine(params, loop, ends)
    for index, (at, prompt, output) in enumerate(jobs):
        loop.at(at, partial(engine.submit, Answer(f"{index}", prompt, output)))
    loop.run(10_000)
    return ends.first, ends.last


def emulated(jobs: Jobs, slots: int, kv_tokens: int) -> tuple[dict[int, float], dict[int, float]]:
    engine = emulator.Engine[emulator.Sequence](
        EmulatorParams(max_num_seqs=slots, kv_tokens=kv_tokens)
    )
    todo = [(at, emulator.Sequence(prompt, output)) for at, prompt, output in jobs]
    sequences = [sequence for _, sequence in todo]
    now = 0.0
    while todo or engine.has_work:
        if not engine.has_work:
            now = max(now, todo[0][0])
        while todo and todo[0][0] <= now:
            engine.submit(todo[0][1], todo.pop(0)[0])
        step = engine.begin(now)
        assert step is not None
        now = step.due_s
        engine.end(step)
    first = {index: sequence.first_token for index, sequence in enumerate(sequences)}
    return first, {index: sequence.last_token for index, sequence in enumerate(sequences)}


def load(seed: int, rate: float) -> Jobs:
    rng = Random(seed)
    at, jobs = 0.0, []
    for _ in range(600):
        at += rng.expovariate(rate)
        jobs.append((at, rng.randint(1, 1200), rng.randint(2, 300)))
    return jobs


@pytest.mark.parametrize("rate", [5.0, 30.0], ids=["light", "overloaded"])
def test_first_and_last_tokens_come_at_the_same_time(rate: float) -> None:
    jobs = load(1, rate)
    first, last = simulated(jobs, 64, 400_000)
    emulated_first, emulated_last = emulated(jobs, 64, 400_000)
    for index in range(len(jobs)):
        assert first[index] == pytest.approx(emulated_first[index], rel=0.02, abs=0.1)
        assert last[index] == pytest.approx(emulated_last[index], rel=0.02, abs=0.1)


def test_a_full_kv_cache_costs_both_the_same() -> None:
    # They differ in when a prompt may enter a full cache, so only the sums are equal.
    jobs = load(2, 30.0)
    _, last = simulated(jobs, 200, 30_000)
    _, emulated_last = emulated(jobs, 200, 30_000)
    assert max(last.values()) == pytest.approx(max(emulated_last.values()), rel=0.05)
    assert mean(last.values()) == pytest.approx(mean(emulated_last.values()), rel=0.05)
