"""A continuous-batching engine, pure: no clock and no I/O, the caller says when a step begins.

It decides, step by step, which sequences run and which get a token, the way vLLM's scheduler does:

    begin(now)  every running sequence, in order of admission, gets one token of the step's budget,
                or a chunk when its prefill is not done (only the newest can be in that state, so
                decode comes first); then sequences that wait are admitted, first come first
                served, while a slot, budget and KV are free. KV overflow preempts the newest: it
                returns to the head of the queue and computes prompt and answer again. A step
                that preempts admits nothing.
    end(step)   each sequence that is past its prefill has one more token; the finished leave.

    step time = step_ms + seq_ms · batch + prefill tokens / prefill_tps

Invariants: running ≤ max_num_seqs (unless lowered meanwhile), kv_used = Σ computed ≤ kv_tokens,
and every submitted sequence leaves exactly once: finished by `end` or cancelled by `cancel`.
A sequence that no longer fits because `kv_tokens` was lowered waits until it is raised again.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from policy_server.backend.params import EngineParams


class Sequence:
    """One request inside the engine. Times are seconds of the caller's clock, -1 = not yet.

    prompt_tokens ≥ 1; max_tokens = length of the answer, 0 = prefill only (an embedding).
    `computed` tokens are in the KV cache (0 = it waits); `target` must be there before the next
    token exists. `gap_s` is the time between its two last tokens.
    """

    __slots__ = (
        "arrived",
        "cancelled",
        "computed",
        "first_token",
        "gap_s",
        "generated",
        "last_token",
        "max_tokens",
        "preemptions",
        "prompt_tokens",
        "scheduled",
        "target",
    )

    def __init__(self, prompt_tokens: int, max_tokens: int) -> None:
        if prompt_tokens < 1 or max_tokens < 0:
            raise ValueError("a sequence has at least one prompt token and no negative answer")
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.generated = 0
        self.computed = 0
        self.target = prompt_tokens
        self.preemptions = 0
        self.cancelled = False
        self.gap_s = 0.0
        self.arrived = self.scheduled = self.first_token = self.last_token = -1.0

    @property
    def finished(self) -> bool:
        """Whether the whole answer exists (for a prefill-only sequence: whether it is computed)."""
        return self.generated >= self.max_tokens and self.computed >= self.prompt_tokens


SequenceT = TypeVar("SequenceT", bound=Sequence)


@dataclass(slots=True)
class Step(Generic[SequenceT]):
    """One planned engine step: `tokens` go to the sequences in `ready` when it ends.

    begin_s  caller's clock; duration_s  seconds; batch  sequences in the step;
    prefill_tokens  prompt (and recomputed) tokens of the step.
    """

    begin_s: float
    duration_s: float
    batch: int
    prefill_tokens: int
    ready: list[SequenceT]

    @property
    def due_s(self) -> float:
        """When the step ends and its tokens exist, on the caller's clock."""
        return self.begin_s + self.duration_s


class Engine(Generic[SequenceT]):
    """The scheduler and its queues. `params` may be replaced between steps."""

    def __init__(self, params: EngineParams) -> None:
        self.params = params
        self.running: list[SequenceT] = []
        self.waiting: deque[SequenceT] = deque()
        self.kv_used = 0
        self.preemptions_total = 0
        self.steps_total = 0
        self.busy_s = 0.0
        self._preempted_now = False

    @property
    def has_work(self) -> bool:
        """Whether a step could be planned now."""
        return bool(self.running or self.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0..1."""
        return self.kv_used / self.params.kv_tokens

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could ever run: its prompt and answer fit into the KV cache."""
        return sequence.prompt_tokens + sequence.max_tokens <= self.params.kv_tokens

    def submit(self, sequence: SequenceT, now: float) -> None:
        """Queue a sequence. Raises ValueError when it can never fit into the KV cache."""
        if not self.fits(sequence):
            raise ValueError(
                f"{sequence.prompt_tokens} prompt and {sequence.max_tokens} answer tokens exceed "
                f"the KV cache of {self.params.kv_tokens} tokens"
            )
        sequence.arrived = now
        self.waiting.append(sequence)

    def cancel(self, sequence: SequenceT) -> None:
        """Forget a sequence: a waiting one at once, a running one with the next step."""
        sequence.cancelled = True
        if sequence.computed == 0:
            with suppress(ValueError):  # cancelled before, or never submitted
                self.waiting.remove(sequence)

    def begin(self, now: float) -> Step[SequenceT] | None:
        """Plan the step that begins at `now`; None when there is nothing to run."""
        self._drop_cancelled()
        if not self.running and not self.waiting:
            return None
        if not self.running:
            now = max(now, self.waiting[0].arrived)
        step: Step[SequenceT] = Step(now, 0.0, 0, 0, [])
        budget = max(self.params.step_tokens, self.params.max_num_seqs)
        self._preempted_now = False
        budget = self._plan_running(step, budget)
        if not self._preempted_now:
            self._admit(step, budget)
        step.duration_s = self._duration(step)
        self.steps_total += 1
        self.busy_s += step.duration_s
        return step

    def end(self, step: Step[SequenceT]) -> list[SequenceT]:
        """Give each ready sequence its token; returns those that got one, the finished included."""
        due = step.due_s
        emitted = [sequence for sequence in step.ready if not sequence.cancelled]
        any_finished = False
        for sequence in emitted:
            if sequence.max_tokens:
                sequence.generated += 1
                sequence.target += 1
            if sequence.first_token < 0:
                sequence.first_token = due
            else:
                sequence.gap_s = due - sequence.last_token
            sequence.last_token = due
            if sequence.generated >= sequence.max_tokens:
                any_finished = True
        if any_finished:
            self._keep([s for s in self.running if not s.finished])
        return emitted

    def _plan_running(self, step: Step[SequenceT], budget: int) -> int:
        """Tokens and chunks for what already runs; returns the budget that is left."""
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            missing = sequence.target - sequence.computed
            chunk = min(budget, missing)
            if self._reserve(sequence, chunk):
                budget -= chunk
                self._count(step, sequence, chunk if missing > 1 else 0)
            index += 1
        return budget

    def _admit(self, step: Step[SequenceT], budget: int) -> None:
        """Admit from the head of the queue while a slot, budget and KV are free."""
        params = self.params
        while self.waiting and budget > 0 and len(self.running) < params.max_num_seqs:
            sequence = self.waiting[0]
            chunk = min(budget, sequence.target)
            if sequence.arrived > step.begin_s or self.kv_used + chunk > params.kv_tokens:
                return
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.scheduled < 0:
                sequence.scheduled = step.begin_s
            sequence.computed += chunk
            self.kv_used += chunk
            budget -= chunk
            self._count(step, sequence, chunk)

    def _count(self, step: Step[SequenceT], sequence: SequenceT, prefill: int) -> None:
        step.batch += 1
        step.prefill_tokens += prefill
        if sequence.computed >= sequence.target:
            step.ready.append(sequence)

    def _reserve(self, sequence: SequenceT, tokens: int) -> bool:
        """Take KV for `tokens`, preempting the newest; False when that was the sequence itself."""
        while self.kv_used + tokens > self.params.kv_tokens:
            victim = self.running.pop()
            self._requeue(victim)
            if victim is sequence:
                return False
        sequence.computed += tokens
        self.kv_used += tokens
        return True

    def _requeue(self, victim: SequenceT) -> None:
        self._preempted_now = True
        self.preemptions_total += 1
        victim.preemptions += 1
        self.kv_used -= victim.computed
        victim.computed = 0
        self.waiting.appendleft(victim)

    def _duration(self, step: Step[SequenceT]) -> float:
        params = self.params
        fixed_s = (params.step_ms + params.seq_ms * step.batch) / 1000
        return fixed_s + step.prefill_tokens / params.prefill_tps

    def _drop_cancelled(self) -> None:
        if any(sequence.cancelled for sequence in self.running):
            self._keep([s for s in self.running if not s.cancelled])

    def _keep(self, remaining: list[SequenceT]) -> None:
        self.running = remaining
        self.kv_used = sum(sequence.computed for sequence in remaining)


def capacity(params: EngineParams, tokens: float, prompt_tokens: float) -> float:
    """Requests per second at saturation, in closed form.

    `tokens` and `prompt_tokens` are means per request (≥ 1). With x requests finished per step:

        slots = min(max_num_seqs, kv_tokens / (prompt + tokens/2))    # a slot's mean KV
        x     = min(slots / steps a request holds its slot, step_tokens / (prompt + tokens − 1))
        rate  = x / (step_ms + seq_ms · sequences in the step + x · prompt / prefill_tps)

    Exact when slots bind; where KV binds it leaves out what preemption computes twice.
    """
    if tokens < 0 or prompt_tokens <= 0:
        raise ValueError("capacity needs prompt_tokens above 0 and tokens of at least 0")
    budget = max(params.step_tokens, params.max_num_seqs)
    slots = min(float(params.max_num_seqs), params.kv_tokens / (prompt_tokens + tokens / 2))
    held_steps = math.ceil(prompt_tokens / budget) + max(0.0, tokens - 1)
    per_step = min(slots / held_steps, budget / (prompt_tokens + max(0.0, tokens - 1)))
    batch = min(slots, per_step * held_steps)
    step_s = (params.step_ms + params.seq_ms * batch) / 1000
    return per_step / (step_s + per_step * prompt_tokens / params.prefill_tps)
