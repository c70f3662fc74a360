"""A continuous-batching engine, exact to the token and cheap by the step.

One step of the whole batch takes (source: `algorithms.md`, a public 7B/H100 sweep)

    t = speed · (step_s + seq_s · sequences in the step + prefill_token_s · prefill tokens in it)

and gives every decoding answer one token. Prompts are prefilled in chunks, first come first
served, beside the decoding answers. An answer enters when a slot and room for its prompt in the
KV cache are free; when the cache overflows, the youngest answer is preempted and recomputed, as
vLLM does.

Nothing here is O(tokens): while the batch does not change, all its steps take the same time, so
the engine jumps to the next step at which something ends (`_jump`). A disturbance (arrival,
cancel, change of speed) cuts the jump at the end of the step in progress. An answer's tokens
are a difference of step counters.

Invariant: KV in use = Σ over running answers of prompt + tokens out, at the step boundary.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from policy_server.core.samples import LoadReport
from policy_server.simulate.backend import Answer, Sink
from policy_server.simulate.loop import Loop

UNBOUNDED = 10**9
MAX_JUMP = 4096
"""Steps; only bounds how stale `_started` may get."""


@dataclass(frozen=True, slots=True)
class EngineParams:
    """One replica. Seconds, tokens; `chunk_tokens` = most prefill tokens in one step.

    Of `cached_share` of the prompts nine tenths are in the prompt cache: no prefill for those.
    """

    step_s: float = 0.0107
    seq_s: float = 0.0002
    prefill_token_s: float = 33e-6
    slots: int = 64
    kv_tokens: int = UNBOUNDED
    chunk_tokens: int = 2048
    cached_share: float = 0.0

    def __post_init__(self) -> None:
        if min(self.step_s, self.seq_s, self.prefill_token_s) < 0 or self.step_s + self.seq_s <= 0:
            raise ValueError("engine: step_s, seq_s, prefill_token_s must be ≥ 0, a step > 0 s")
        if min(self.slots, self.kv_tokens, self.chunk_tokens) < 1:
            raise ValueError("engine: slots, kv_tokens and chunk_tokens must be ≥ 1")
        if not 0.0 <= self.cached_share <= 1.0:
            raise ValueError("engine: cached_share must be within 0 and 1")


class BatchEngine:
    """One replica of a model server with continuous batching."""

    def __init__(self, params: EngineParams, loop: Loop, sink: Sink) -> None:
        self.params = params
        self.preemptions = 0
        self._loop, self._sink = loop, sink
        self._slots, self._speed, self._stalled_until = params.slots, 1.0, 0.0
        self._waiting: deque[Answer] = deque()
        self._prefilling: dict[Answer, int] = {}  # → tokens of it in the present step
        self._decoding: dict[Answer, None] = {}  # oldest first
        self._ends: list[tuple[int, int, int, Answer]] = []  # (step, order, run, answer)
        self._order = 0
        self._hits = 0.0
        self._kv = 0
        self._counter = 0  # steps done
        self._busy = False
        self._started, self._step_s, self._steps = 0.0, 0.0, 0  # the jump in progress
        self._version = 0
        self._cancelled: list[Answer] = []

    # --- what the gateway and the balancer see

    @property
    def active(self) -> int:
        """Answers in progress or queued."""
        return len(self._waiting) + len(self._prefilling) + len(self._decoding)

    def submit(self, answer: Answer) -> None:
        """Queue it; it enters the batch at the next step boundary with room."""
        kv = self.params.kv_tokens
        answer.prompt = min(answer.prompt, max(1, kv // 2))
        answer.output = max(1, min(answer.output, kv - answer.prompt))
        answer.prefill_left = self._uncached(answer.prompt)
        self._waiting.append(answer)
        if not self._busy:
            self._begin()
        elif len(self._waiting) == 1 and self._fits(answer):
            self._cut()

    def _uncached(self, prompt: int) -> int:
        """Tokens of a new prompt that take prefill; the hits are spread evenly."""
        self._hits += self.params.cached_share
        if self._hits < 1.0:
            return prompt
        self._hits -= 1.0
        return max(1, prompt // 10)

    def cancel(self, answer: Answer) -> None:
        """Free what it holds at the end of the step in progress."""
        if answer.done:
            return
        answer.done = True
        if answer in self._decoding or answer in self._prefilling:
            self._cancelled.append(answer)
            self._cut()
        else:
            self._waiting.remove(answer)

    def progress(self, answer: Answer) -> tuple[int, float]:
        """Tokens out so far, and when the last of them came."""
        if answer not in self._decoding:
            return answer.produced, self._started
        steps = self._steps_done()
        made = answer.produced + self._counter + steps - answer.joined
        return min(made, answer.output), self._started + steps * self._step_s

    def load(self) -> LoadReport:
        """What `/metrics` or an ORCA header would say."""
        kv = self._kv + self._steps_done() * len(self._decoding)
        return LoadReport(
            waiting=float(len(self._waiting)),
            running=float(len(self._prefilling) + len(self._decoding)),
            kv_used=min(1.0, kv / self.params.kv_tokens),
            preemptions_total=float(self.preemptions),
        )

    # --- what the world does to it

    def set_speed(self, factor: float) -> None:
        """From the next step on, every step takes `factor` times its normal time."""
        self._speed = factor
        self._cut()

    def set_slots(self, slots: int) -> None:
        """More slots fill at once, fewer as answers end."""
        self._slots = max(1, slots)
        self._cut()

    def stall(self, until: float) -> None:
        """Finish the step in progress, then do nothing until then."""
        self._stalled_until = until
        self._cut()

    def kill(self) -> None:
        """Fail everything; the process is empty and idle afterwards."""
        lost = [*self._decoding, *self._prefilling, *self._waiting]
        for pending in (self._waiting, self._prefilling, self._decoding, self._ends):
            pending.clear()
        self._cancelled.clear()
        self._kv, self._busy = 0, False
        self._version += 1
        for answer in lost:
            if not answer.done:
                answer.done = True
                self._sink.failed(answer)

    # --- steps

    def _steps_done(self) -> int:
        """Steps of the jump in progress that are over by now."""
        if not self._busy or self._steps <= 1:
            return 0
        return min(int((self._loop.now - self._started) / self._step_s + 1e-9), self._steps - 1)

    def _cut(self) -> None:
        """End the jump with the step in progress, so that the batch can change after it."""
        if self._busy and self._steps > 1:
            self._steps = self._steps_done() + 1
            self._schedule(self._started + self._steps * self._step_s)

    def _schedule(self, when: float) -> None:
        self._version += 1
        self._loop.at(when, partial(self._end, self._version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        steps, self._steps = self._steps, 0
        self._counter += steps
        self._kv += steps * len(self._decoding)
        ended = self._drop_ended()
        started = self._finish_prefill()
        for answer in started:
            if answer.produced >= answer.output:
                self._finish(answer, ended)
        self._begin()
        # Told last: whoever hears of it may submit or cancel at once.
        for answer in started:
            if answer.first_token_at is None:
                answer.first_token_at = self._loop.now
                self._sink.first_token(answer)
        for answer in ended:
            self._sink.finished(answer)

    def _begin(self) -> None:
        """At a step boundary: change the batch, then start the next jump."""
        now = self._loop.now
        for answer in self._cancelled:
            self._leave(answer)
        self._cancelled.clear()
        if now < self._stalled_until:
            self._busy, self._started, self._step_s, self._steps = True, now, 0.0, 0
            self._schedule(self._stalled_until)
            return
        while self._waiting and self._fits(self._waiting[0]):
            answer = self._waiting.popleft()
            self._prefilling[answer] = 0
            self._kv += answer.prompt + answer.produced
        self._make_room()
        self._busy = bool(self._prefilling or self._decoding)
        if self._busy:
            self._jump(now)

    def _jump(self, now: float) -> None:
        tokens, sequences = self._plan_prefill()
        params = self.params
        batch = len(self._decoding) + sequences
        step = params.step_s + params.seq_s * batch + params.prefill_token_s * tokens
        self._started, self._step_s = now, step * self._speed
        self._steps = 1 if sequences else self._quiet_steps()
        self._schedule(now + self._steps * self._step_s)

    def _quiet_steps(self) -> int:
        """Steps until an answer ends or the KV cache is full."""
        while self._ends and self._stale(self._ends[0]):
            heappop(self._ends)
        room = (self.params.kv_tokens - self._kv) // len(self._decoding)
        return max(1, min(self._ends[0][0] - self._counter, room, MAX_JUMP))

    def _plan_prefill(self) -> tuple[int, int]:
        left, sequences = self.params.chunk_tokens, 0
        for answer in self._prefilling:
            share = min(left, answer.prefill_left)
            self._prefilling[answer] = share
            left -= share
            sequences += share > 0
        return self.params.chunk_tokens - left, sequences

    def _finish_prefill(self) -> list[Answer]:
        started = []
        for answer, share in list(self._prefilling.items()):
            answer.prefill_left -= share
            if answer.prefill_left > 0:
                continue
            del self._prefilling[answer]
            answer.produced += 1
            self._kv += 1
            self._decode(answer)
            if not answer.done:
                started.append(answer)
        return started

    def _decode(self, answer: Answer) -> None:
        answer.joined = self._counter
        answer.run += 1
        self._decoding[answer] = None
        self._order += 1
        left = answer.output - answer.produced
        heappush(self._ends, (self._counter + left, self._order, answer.run, answer))

    def _drop_ended(self) -> list[Answer]:
        ended: list[Answer] = []
        while self._ends and self._ends[0][0] <= self._counter:
            entry = heappop(self._ends)
            if not self._stale(entry):
                self._finish(entry[3], ended)
        return ended

    def _finish(self, answer: Answer, ended: list[Answer]) -> None:
        self._leave(answer)
        answer.done = True
        ended.append(answer)

    @staticmethod
    def _stale(entry: tuple[int, int, int, Answer]) -> bool:
        return entry[3].done or entry[3].run != entry[2]

    # --- the KV cache

    def _fits(self, answer: Answer) -> bool:
        running = len(self._prefilling) + len(self._decoding)
        kv = self._kv + self._steps_done() * len(self._decoding)
        # One more token for everyone: entering only to be preempted at once is no service.
        need = answer.prompt + answer.produced + running + 1
        fits = kv + need <= self.params.kv_tokens
        return running < self._slots and (fits or running == 0)

    def _make_room(self) -> None:
        while len(self._decoding) > 1 and self._kv + len(self._decoding) > self.params.kv_tokens:
            answer = next(reversed(self._decoding))
            self._leave(answer)
            answer.run += 1
            answer.prefill_left = answer.prompt + answer.produced
            self._waiting.appendleft(answer)
            self.preemptions += 1

    def _leave(self, answer: Answer) -> None:
        if answer in self._decoding:
            del self._decoding[answer]
            answer.produced += self._counter - answer.joined
        else:
            self._prefilling.pop(answer, None)
        self._kv -= answer.prompt + answer.produced
