"""Whatever clients and control do, the engine keeps its books."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policy_server.backend.engine import Engine, Sequence, Step
from policy_server.backend.params import EngineParams

KV = 60


class EngineMachine(RuleBasedStateMachine):
    """Submits, cancels and steps in any order; a cancel may fall inside a step."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine[Sequence] = Engine(
            EngineParams(max_num_seqs=3, kv_tokens=KV, step_tokens=16)
        )
        self.now = 0.0
        self.step: Step[Sequence] | None = None
        self.live: list[Sequence] = []
        self.left: list[Sequence] = []

    @rule(prompt=st.integers(1, 30), tokens=st.integers(0, 30))
    def submit(self, prompt: int, tokens: int) -> None:
        sequence = Sequence(prompt, tokens)
        self.engine.submit(sequence, self.now)
        self.live.append(sequence)

    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick: int) -> None:
        if self.live:
            sequence = self.live.pop(pick % len(self.live))
            self.engine.cancel(sequence)
            self.left.append(sequence)

    @rule()
    def begin(self) -> None:
        if self.step is None:
            self.step = self.engine.begin(self.now)

    @rule()
    def end(self) -> None:
        if self.step is None:
            return
        self.now = self.step.due_s
        for sequence in self.engine.end(self.step):
            assert sequence in self.live
            if sequence.finished:
                self.live.remove(sequence)
                self.left.append(sequence)
        self.step = None

    @invariant()
    def books_balance(self) -> None:
        engine = self.engine
        assert len(engine.running) <= 3
        assert engine.kv_used == sum(s.computed for s in engine.running) <= KV
        inside = [*engine.running, *engine.waiting]
        assert len(inside) == len(set(map(id, inside)))
        assert {id(s) for s in inside if not s.cancelled} == {id(s) for s in self.live}

    def teardown(self) -> None:
        for _ in range(20_000):
            self.end()
            self.begin()
            if self.step is None:
                break
        assert not self.live, "a sequence never got its answer"
        assert self.engine.kv_used == 0


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase


@given(prompt=st.integers(1, 5000), tokens=st.integers(1, 50), budget=st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_a_lone_answer_takes_its_prefill_steps_plus_its_tokens(
    prompt: int, tokens: int, budget: int
) -> None:
    engine: Engine[Sequence] = Engine(EngineParams(max_num_seqs=1, step_tokens=budget))
    engine.submit(Sequence(prompt, tokens), 0.0)
    steps, now = 0, 0.0
    while (step := engine.begin(now)) is not None:
        now = step.due_s
        engine.end(step)
        steps += 1
    assert steps == -(-prompt // budget) + tokens - 1
