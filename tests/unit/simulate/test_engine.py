"""The engine model against its own arithmetic and against a token-by-token reference."""

from __future__ import annotations

from random import Random

import pytest

from policy_server.simulate.backend import Answer
from policy_server.simulate.engine import BatchEngine, EngineParams
from policy_server.simulate.loop import Loop


class Heard:
    """Collects what the engine tells."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.lost: list[str] = []

    def first_token(self, answer: Answer) -> None:
        self.first[answer.uid] = self.loop.now

    def finished(self, answer: Answer) -> None:
        self.last[answer.uid] = self.loop.now

    def failed(self, answer: Answer) -> None:
        self.lost.append(answer.uid)


def make(**params: float) -> tuple[Loop, BatchEngine, Heard]:
    loop = Loop()
    heard = Heard(loop)
    values = {"step_s": 0.01, "seq_s": 0.001, "prefill_token_s": 1e-5, **params}
    return loop, BatchEngine(EngineParams(**values), loop, heard), heard  # type: ignore[arg-type]


def test_one_answer_takes_prefill_plus_one_step_per_token() -> None:
    loop, engine, heard = make()
    engine.submit(Answer("a", prompt=1000, output=11))
    loop.run(10)
    assert heard.first["a"] == pytest.approx(0.01 + 0.001 + 0.01)
    assert heard.last["a"] == pytest.approx(heard.first["a"] + 10 * 0.011)


def test_a_full_batch_makes_a_token_per_answer_and_step() -> None:
    loop, engine, heard = make(prefill_token_s=0.0, slots=8)
    for n in range(8):
        engine.submit(Answer(f"{n}", prompt=1, output=100))
    loop.run(60)
    # the first one starts alone and ends one step before the rest, which joined at its boundary
    assert heard.last["7"] == pytest.approx(0.011 + 0.018 * 99 + 0.017)


def test_the_ninth_answer_waits_for_a_slot() -> None:
    loop, engine, heard = make(slots=8)
    for n in range(9):
        engine.submit(Answer(f"{n}", prompt=10, output=50))
    assert engine.load().waiting == 8  # they join at the boundary
    loop.run(0.5)
    assert engine.load().waiting == 1
    loop.run(60)
    assert heard.first["8"] > heard.last["0"]


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_decoding() -> None:
    loop, engine, heard = make(chunk_tokens=1000)
    engine.submit(Answer("decoding", prompt=1, output=1000))
    loop.run(0.1)
    engine.submit(Answer("long", prompt=4000, output=2))
    started = loop.now
    loop.run(20)
    four_chunks = 4 * (0.01 + 0.002 + 0.01)
    assert four_chunks <= heard.first["long"] - started <= four_chunks + 0.011 + 1e-9


def test_progress_counts_tokens_inside_a_jump() -> None:
    loop, engine, _ = make(prefill_token_s=0.0)
    answer = Answer("a", prompt=1, output=1000)
    engine.submit(answer)
    loop.run(0.011 + 0.011 * 10 + 0.005)
    assert engine.progress(answer) == (11, pytest.approx(0.011 * 11))


def test_an_arrival_cuts_the_jump_at_the_step_in_progress() -> None:
    loop, engine, heard = make(prefill_token_s=0.0)
    engine.submit(Answer("a", prompt=1, output=1000))
    loop.run(1.0)
    engine.submit(Answer("b", prompt=1, output=1))
    loop.run(2.0)
    boundary = 0.011 * (int(1.0 / 0.011) + 1)
    assert heard.first["b"] == pytest.approx(boundary + 0.012)
    assert heard.last["b"] == heard.first["b"]


def test_kv_overflow_preempts_the_youngest_and_recomputes_it() -> None:
    loop, engine, heard = make(kv_tokens=300, slots=8)
    for n in range(3):
        engine.submit(Answer(f"{n}", prompt=80, output=100))
    loop.run(60)
    assert engine.preemptions > 0
    assert set(heard.last) == {"0", "1", "2"}
    assert heard.last["0"] < heard.last["2"]
    assert engine.load().kv_used == 0


def test_cancelled_answers_free_their_slot_and_are_never_heard_of() -> None:
    loop, engine, heard = make(slots=2)
    answers = [Answer(f"{n}", prompt=10, output=1000) for n in range(3)]
    for answer in answers:
        engine.submit(answer)
    loop.run(1)
    engine.cancel(answers[0])
    engine.cancel(answers[0])
    loop.run(1.1)
    assert engine.load().waiting == 0
    engine.cancel(answers[2])
    loop.run(60)
    assert set(heard.last) == {"1"}
    assert engine.active == 0
    assert engine.load().kv_used == 0


def test_a_stall_stops_everything_and_ends() -> None:
    loop, engine, heard = make(prefill_token_s=0.0)
    engine.submit(Answer("a", prompt=1, output=101))
    loop.run(0.5)
    engine.stall(30.5)
    loop.run(60)
    assert heard.last["a"] == pytest.approx(30.5 + 101 * 0.011 - 0.506, abs=0.02)


def test_twice_the_step_time_takes_twice_as_long() -> None:
    loop, engine, heard = make(prefill_token_s=0.0)
    engine.set_speed(2.0)
    engine.submit(Answer("a", prompt=1, output=100))
    loop.run(60)
    assert heard.last["a"] == pytest.approx(2 * 1.1)


def test_a_killed_engine_fails_everything_and_works_again() -> None:
    loop, engine, heard = make(slots=2)
    for n in range(3):
        engine.submit(Answer(f"{n}", prompt=1, output=100))
    loop.run(0.5)
    engine.kill()
    assert sorted(heard.lost) == ["0", "1", "2"]
    engine.submit(Answer("x", prompt=1, output=10))
    loop.run(60)
    assert set(heard.last) == {"x"}


def reference(params: EngineParams, jobs: list[tuple[float, int, int]]) -> dict[str, float]:
    """Every step of every token, one at a time, without preemption: when each answer ended."""
    now, waiting, running, ends = 0.0, [], [], {}
    todo = [(at, f"{n}", prompt, output) for n, (at, prompt, output) in enumerate(jobs)]
    while todo or waiting or running:
        if not waiting and not running:
            now = max(now, todo[0][0])
        while todo and todo[0][0] <= now:
            _, uid, prompt, output = todo.pop(0)
            waiting.append([uid, prompt, output])
        while waiting and len(running) < params.slots:
            running.append(waiting.pop(0))
        budget, decoding, prefill, batch = params.chunk_tokens, [], 0, 0
        for answer in running:
            if answer[1] == 0:
                decoding.append(answer)
                batch += 1
        for answer in running:
            if answer[1] > 0 and budget > 0:
                share = min(budget, answer[1])
                answer[1] -= share
                budget -= share
                prefill += share
                batch += 1
                if answer[1] == 0:
                    decoding.append(answer)
        now += params.step_s + params.seq_s * batch + params.prefill_token_s * prefill
        for answer in decoding:
            answer[2] -= 1
            if answer[2] == 0:
                ends[answer[0]] = now
                running.remove(answer)
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_jumps_agree_with_the_token_by_token_reference(seed: int) -> None:
    rng = Random(seed)
    params = EngineParams(slots=12, chunk_tokens=512)
    at, jobs = 0.0, []
    for _ in range(200):
        at += rng.expovariate(8)
        jobs.append((at, rng.randint(1, 1500), rng.randint(1, 150)))
    loop = Loop()
    heard = Heard(loop)
    engine = BatchEngine(params, loop, heard)
    for n, (when, prompt, output) in enumerate(jobs):
        answer = Answer(f"{n}", prompt, output)
        loop.at(when, lambda answer=answer: engine.submit(answer))  # type: ignore[misc]
    loop.run(1000)
    expected = reference(params, jobs)
    assert heard.last.keys() == expected.keys()
    for uid, when in expected.items():
        assert heard.last[uid] == pytest.approx(when, abs=1e-6), uid


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="slots"):
        EngineParams(slots=0)
    with pytest.raises(ValueError, match="step"):
        EngineParams(step_s=0, seq_s=0)
