"""The engine in virtual time: scheduling, preemption, cancellation, and its own arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from policy_server.backend.engine import Engine, Sequence, capacity
from policy_server.backend.params import EngineParams

Length = Callable[[], int]


def drain(engine: Engine[Sequence], now: float = 0.0) -> list[list[Sequence]]:
    """Run to the end; the sequences that got a token, step by step."""
    steps = []
    while (step := engine.begin(now)) is not None:
        now = step.due_s
        steps.append(engine.end(step))
    return steps


def test_an_answer_has_exactly_the_tokens_that_were_asked_for() -> None:
    engine: Engine[Sequence] = Engine(EngineParams())
    sequence = Sequence(prompt_tokens=100, max_tokens=7)
    engine.submit(sequence, 0.0)
    steps = drain(engine)
    assert [s == [sequence] for s in steps] == [True] * 7
    assert sequence.finished
    assert engine.kv_used == 0


def test_a_step_takes_as_long_as_its_batch_and_its_prefill_say() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(step_ms=10, seq_ms=1, prefill_tps=1000))
    for _ in range(3):
        engine.submit(Sequence(10, 2), 5.0)
    first = engine.begin(5.0)
    assert first is not None
    assert first.duration_s == pytest.approx(0.010 + 3 * 0.001 + 30 / 1000)
    engine.end(first)
    second = engine.begin(first.due_s)
    assert second is not None
    assert second.duration_s == pytest.approx(0.010 + 3 * 0.001)


def test_a_long_prompt_is_computed_in_chunks_beside_running_answers() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(step_tokens=100, max_num_seqs=8))
    short, long = Sequence(10, 50), Sequence(450, 1)
    engine.submit(short, 0.0)
    engine.submit(long, 0.0)
    steps = drain(engine)
    first_of_long = next(i for i, emitted in enumerate(steps) if long in emitted)
    assert first_of_long == 4  # 90, then 99 a step beside the other's token: 90 + 4·99 ≥ 450
    assert all(short in emitted for emitted in steps[:50])


def test_the_queue_is_first_come_first_served_and_slots_are_the_bound() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(max_num_seqs=2))
    sequences = [Sequence(10, 3) for _ in range(5)]
    for sequence in sequences:
        engine.submit(sequence, 0.0)
    order = [s for emitted in drain(engine) for s in emitted if s.generated == 3]
    firsts = sorted(sequences, key=lambda s: s.first_token)
    assert firsts == sequences
    assert set(order) == set(sequences)
    assert sequences[2].scheduled > sequences[0].scheduled


def test_an_embedding_ends_with_its_prefill() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(step_tokens=64))
    sequence = Sequence(prompt_tokens=100, max_tokens=0)
    engine.submit(sequence, 0.0)
    assert drain(engine) == [[], [sequence]]
    assert sequence.generated == 0


def test_kv_overflow_preempts_the_newest_which_still_gets_its_whole_answer() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(kv_tokens=100))
    old, new = Sequence(40, 40), Sequence(40, 40)
    engine.submit(old, 0.0)
    engine.submit(new, 0.0)
    drain(engine)
    assert (old.preemptions, new.preemptions) == (0, 1)
    assert new.generated == 40
    assert new.last_token > old.last_token
    assert engine.preemptions_total == 1


def test_a_preempted_sequence_keeps_its_place_before_those_that_wait() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(kv_tokens=100, max_num_seqs=2))
    first, preempted, waiting = Sequence(40, 40), Sequence(40, 40), Sequence(40, 40)
    for sequence in (first, preempted, waiting):
        engine.submit(sequence, 0.0)
    drain(engine)
    assert preempted.preemptions >= 1
    assert first.last_token < preempted.last_token < waiting.last_token


def test_what_can_never_fit_is_refused() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(kv_tokens=100))
    with pytest.raises(ValueError, match="KV cache of 100"):
        engine.submit(Sequence(60, 41), 0.0)
    assert not engine.has_work


def test_a_cancelled_sequence_frees_its_slot_at_the_next_step() -> None:
    engine: Engine[Sequence] = Engine(EngineParams(max_num_seqs=1))
    gone, waiting, next_one = Sequence(10, 100), Sequence(10, 100), Sequence(10, 1)
    for sequence in (gone, waiting, next_one):
        engine.submit(sequence, 0.0)
    step = engine.begin(0.0)
    assert step is not None
    engine.cancel(gone)
    engine.cancel(waiting)
    assert engine.end(step) == []
    following = engine.begin(step.due_s)
    assert following is not None
    assert engine.end(following) == [next_one]
    assert engine.kv_used == 0


def test_a_sequence_is_not_admitted_before_it_arrived() -> None:
    engine: Engine[Sequence] = Engine(EngineParams())
    engine.submit(Sequence(10, 5), 1.0)
    step = engine.begin(1.0)
    assert step is not None
    engine.end(step)
    late = Sequence(10, 5)
    engine.submit(late, step.due_s + 1)  # the loop was late: the next step began before this
    engine.begin(step.due_s)
    assert late.scheduled < 0


@pytest.mark.parametrize(
    ("params", "tokens", "prompt", "bar"),
    [
        (EngineParams(), 100, 100, 0.02),
        (EngineParams(), 100, 1000, 0.02),
        (EngineParams(max_num_seqs=200), 100, 64, 0.02),
        (EngineParams(max_num_seqs=6), 100, 64, 0.02),
        (EngineParams(max_num_seqs=1), 100, 64, 0.02),
        (EngineParams(), 300, 5000, 0.02),
        (EngineParams(), 2, 3000, 0.02),
        (EngineParams(), 0, 500, 0.02),
        (EngineParams(kv_tokens=8_000), 200, 100, 0.10),  # capacity() leaves preemption out
        (EngineParams(kv_tokens=20_000, max_num_seqs=256), 200, 1000, 0.10),
    ],
)
def test_steady_state_is_the_closed_form(
    params: EngineParams, tokens: int, prompt: int, bar: float
) -> None:
    measured = saturated_rate(params, prompt, lambda: tokens)
    assert measured / capacity(params, tokens, prompt) == pytest.approx(1.0, abs=bar)


@pytest.mark.parametrize("slots", [6, 40, 200])
def test_steady_state_is_the_closed_form_of_the_mean_with_lognormal_lengths(slots: int) -> None:
    rng, sigma = random.Random(1), 0.9
    mu = math.log(100) - sigma**2 / 2
    params = EngineParams(max_num_seqs=slots)
    measured = saturated_rate(params, 64, lambda: max(1, round(rng.lognormvariate(mu, sigma))))
    assert measured / capacity(params, 100, 64) == pytest.approx(1.0, abs=0.10)


def saturated_rate(params: EngineParams, prompt: int, length: Length) -> float:
    """Requests/s with twice as many closed-loop clients as slots, after a warm-up."""
    warm_s, end_s = 30.0, 230.0
    engine: Engine[Sequence] = Engine(params)
    for _ in range(2 * params.max_num_seqs):
        engine.submit(Sequence(prompt, length()), 0.0)
    now, finished = 0.0, 0
    while now < end_s:
        step = engine.begin(now)
        assert step is not None
        now = step.due_s
        for sequence in engine.end(step):
            if sequence.finished:
                finished += now >= warm_s
                engine.submit(Sequence(prompt, length()), now)
    return finished / (now - warm_s)
