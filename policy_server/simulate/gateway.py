"""Envoy, the driver and the clients of a run: carries calls to the gate and answers back.

Owns the attempts under way. A call is what a client wants; an attempt is one request of it with
a uid of its own. The gate's answers are events, as in production; this module only obeys them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from policy_server.core.events import Admitted, Event, LimitChanged, Shed
from policy_server.core.params import ClassParams
from policy_server.core.request import Priority, Request
from policy_server.simulate.backend import Answer
from policy_server.simulate.cluster import Cluster
from policy_server.simulate.gate import NODE, POOL, CoreGate, DeadGate, Gate
from policy_server.simulate.loop import Loop
from policy_server.simulate.observer import Observer
from policy_server.simulate.record import CallRecord, End, LimitMove, Result, Return, ShedRecord
from policy_server.simulate.retry import retry_delay_s
from policy_server.simulate.workload import Call

BYTES_PER_TOKEN = 4
GRACE_S = 0.1  # a client does not count its budget to the millisecond
RESEND_S = 0.5  # Envoy's longest back-off between two tries of a held request
MID_ANSWER_TOKEN_S = 0.03  # a client that quits does so after some tokens' worth of time


@dataclass(frozen=True, slots=True)
class Objectives:
    """An answer is useful when its wait kept to the client's budget and the engine to these.

    Seconds; None = whatever it took.
    """

    ttft_s: float | None = 2.0
    tpot_s: float | None = None

    def met(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Whether an answer was useful; TTFT counts from its dispatch."""
        return (self.ttft_s is None or ttft_s <= self.ttft_s) and (
            self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s
        )


@dataclass(slots=True, eq=False)
class Attempt:
    """One request of a call, between its arrival and its end."""

    call: Call
    record: CallRecord
    number: int
    request: Request
    answer: Answer | None = None
    observed: bool = False


class Gateway:
    """Sink of the engine, caller of the gate, and the clients' side of the line."""

    def __init__(
        self,
        loop: Loop,
        classes: Mapping[Priority, ClassParams],
        objectives: Objectives,
        rng: Random,
        result: Result,
    ) -> None:
        self._loop, self._classes, self._objectives = loop, classes, objectives
        self._rng, self._result = rng, result
        self._attempts: dict[str, Attempt] = {}
        self._uid = 0
        self._timer: float | None = None
        self.keep_log = False
        self.inflight = 0

    def wire(self, gate: Gate, cluster: Cluster, observer: Observer, index: int) -> None:
        """The other parts know this one, so they come after it."""
        self.gate, self._cluster, self.observer, self._index = gate, cluster, observer, index

    @property
    def open(self) -> int:
        """Attempts that wait or are under way."""
        return len(self._attempts)

    # --- clients

    def start(self, call: Call) -> None:
        """A client makes its call."""
        record = CallRecord(call.at, call.priority, call.tenant)
        self._result.calls.append(record)
        self._attempt(call, record, 0)

    def _attempt(self, call: Call, record: CallRecord, number: int) -> None:
        now = self._loop.now
        self._uid += 1
        budget_s = self._classes[call.priority].max_wait_s
        if call.manner.max_wait_s is not None:
            budget_s = min(budget_s, call.manner.max_wait_s)
        request = Request(
            uid=f"{self._index}-{self._uid}",
            pool=POOL,
            priority=call.priority,
            arrived=now,
            deadline=now + budget_s,
            tenant=call.tenant,
            model=call.model,
            body_bytes=BYTES_PER_TOKEN * call.prompt,
            prompt_tokens=call.prompt,
            streamed=call.manner.streamed,
            returning=number > 0,
            node=NODE,
            arrived_wall=now,
        )
        record.attempts = number + 1
        attempt = Attempt(call, record, number, request)
        self._attempts[request.uid] = attempt
        if call.manner.patience_s is not None:
            self._loop.after(call.manner.patience_s, partial(self._lose_patience, attempt))
        self.obey(self.gate.submit(request, now))

    def _lose_patience(self, attempt: Attempt) -> None:
        answer = attempt.answer
        if attempt.call.manner.streamed and answer and answer.first_token_at is not None:
            return
        self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        """The client hangs up, wherever its request is."""
        uid, answer = attempt.request.uid, attempt.answer
        if uid not in self._attempts or (answer is not None and answer.done):
            return
        del self._attempts[uid]
        self._close(attempt, End.LEFT)
        if answer is None:
            self.obey(self.gate.cancel(uid, self._loop.now))
            return
        self._cluster.cancel(answer)
        self.observer.ended(answer, attempt.observed, whole=False)
        status = 200 if answer.first_token_at is not None else 0
        self._log_end(attempt, answer, status, gone=True)

    def _close(self, attempt: Attempt, end: End) -> None:
        attempt.record.ended, attempt.record.end = self._loop.now, end

    # --- the gate's events

    def obey(self, events: Sequence[Event]) -> None:
        """Do what the gate decided, then set its timer."""
        for event in events:
            if self.keep_log:
                self._result.log.append(f"{self._loop.now:.6f} {event!r}")
            if isinstance(event, Admitted):
                self._dispatch(event)
            elif isinstance(event, Shed):
                self._refuse(event)
            elif isinstance(event, LimitChanged):
                change = event.change
                self._result.moves.append(
                    LimitMove(self._loop.now, event.previous, change.limit, change.reason.value)
                )
        self._arm()

    def _arm(self) -> None:
        when = self.gate.next_timer()
        if when is not None and (self._timer is None or when < self._timer):
            self._timer = when
            self._loop.at(when, partial(self._fire, when))

    def _fire(self, when: float) -> None:
        if self._timer != when:
            return  # an earlier one came in between and set the next
        self._timer = None
        self.obey(self.gate.handle_timer(self._loop.now))

    def _dispatch(self, event: Admitted) -> None:
        attempt = self._attempts.get(event.request.uid)
        if attempt is None:
            return
        if attempt.answer is not None:
            self._result.run_twice += 1
            return
        record, call = attempt.record, attempt.call
        record.dispatched, record.wait_s = self._loop.now, event.wait_s
        record.first_try = attempt.number == 0
        if attempt.number:
            self._result.returns.append(Return(self._loop.now, call.priority, True))
        attempt.observed = event.observe
        attempt.answer = Answer(event.request.uid, call.prompt, call.output, call.model)
        self.inflight += 1
        self.observer.sent(event.request.uid)
        if not self._cluster.submit(attempt.answer, self._loop.now):
            attempt.answer.sent_at, attempt.answer.done = self._loop.now, True
            # Told later: the gate is in the middle of its own events.
            self._loop.after(0.0, partial(self.failed, attempt.answer))

    def _refuse(self, event: Shed) -> None:
        attempt = self._attempts.pop(event.request.uid, None)
        if attempt is None:
            return
        now, record = self._loop.now, attempt.record
        self._result.sheds.append(
            ShedRecord(
                at=now,
                priority=event.request.priority,
                reason=event.reason,
                retry_after_s=event.retry_after_s,
                evicted=event.evicted,
                should_retry=event.should_retry,
                returning=attempt.number > 0,
            )
        )
        if attempt.number:
            self._result.returns.append(Return(now, event.request.priority, False))
        record.reason, record.evicted = event.reason, event.evicted
        self._retry_or_end(attempt, event.retry_after_s, event.should_retry, End.REFUSED)

    def _retry_or_end(
        self, attempt: Attempt, retry_after_s: float | None, should_retry: bool, end: End
    ) -> None:
        delay = None
        if attempt.call.manner.sdk:
            delay = retry_delay_s(attempt.number, retry_after_s, should_retry, self._rng)
        if delay is None:
            self._close(attempt, end)
            return
        again = partial(self._attempt, attempt.call, attempt.record, attempt.number + 1)
        self._loop.after(delay, again)

    # --- a crash of the policy server

    def crash(self, outage_s: float, make_gate: Callable[[], Gate]) -> None:
        """It dies with all it knows, but for its journal; Envoy keeps the held requests."""
        old, now = self.gate, self._loop.now
        saved = old.learned(now) if isinstance(old, CoreGate) else {}
        attempts = list(self._attempts.values())
        held = [attempt.request for attempt in attempts if attempt.answer is None]
        under_way = [(a.request, a.answer.sent_at) for a in attempts if a.answer is not None]
        self._use(DeadGate())

        def restart() -> None:
            gate = make_gate()
            self._use(gate)
            if isinstance(gate, CoreGate):
                gate.restore_learned(saved, self._loop.now)
                for request, sent_at in under_way:
                    gate.restore_lease(request, sent_at, self._loop.now)
                self.obey(gate.restore(held, self._loop.now))
            for attempt in list(self._attempts.values()):
                if attempt.answer is None:
                    self._loop.after(RESEND_S * self._rng.random(), partial(self._resend, attempt))

        self._loop.after(outage_s, restart)

    def _use(self, gate: Gate) -> None:
        self.gate = self.observer.gate = gate
        self._timer = None

    def _resend(self, attempt: Attempt) -> None:
        uid, now = attempt.request.uid, self._loop.now
        if uid not in self._attempts or attempt.answer is not None:
            return
        deadline = now + attempt.request.budget_s
        attempt.request = replace(attempt.request, arrived=now, deadline=deadline)
        self.obey(self.gate.submit(attempt.request, now))

    # --- the engine's progress

    def first_token(self, answer: Answer) -> None:
        """The engine sent the first token."""
        attempt = self._attempts.get(answer.uid)
        if attempt is None:
            return
        record, now = attempt.record, self._loop.now
        record.ttft_s = now - attempt.request.arrived
        record.engine_ttft_s = now - answer.sent_at
        manner = attempt.call.manner
        if attempt.observed and manner.streamed:
            self.observer.began(answer)
        if manner.quit_share and self._rng.random() < manner.quit_share:
            part = 0.1 + 0.8 * self._rng.random()
            after_s = part * answer.output * MID_ANSWER_TOKEN_S
            self._loop.after(after_s, partial(self._leave, attempt))

    def finished(self, answer: Answer) -> None:
        """The engine sent the last token."""
        attempt = self._attempts.pop(answer.uid, None)
        if attempt is None:
            return
        record = attempt.record
        started = answer.first_token_at if answer.first_token_at is not None else self._loop.now
        if answer.output > 1:
            record.tpot_s = (self._loop.now - started) / (answer.output - 1)
        ttft_s = record.engine_ttft_s if record.engine_ttft_s is not None else 0.0
        in_time = record.wait_s <= attempt.request.budget_s + GRACE_S
        record.useful = in_time and self._objectives.met(ttft_s, record.tpot_s)
        record.tokens = answer.output
        self._close(attempt, End.SERVED)
        self.observer.ended(answer, attempt.observed, whole=True)
        self._log_end(attempt, answer, 200, gone=False)

    def failed(self, answer: Answer) -> None:
        """The engine died under it; the client sees 503."""
        attempt = self._attempts.pop(answer.uid, None)
        if attempt is None:
            return
        self.observer.ended(answer, attempt.observed, whole=False)
        self._log_end(attempt, answer, 503, gone=False)
        self._retry_or_end(attempt, None, True, End.FAILED)

    def _log_end(self, attempt: Attempt, answer: Answer, status: int, gone: bool) -> None:
        """The lease ends when the access log says so, a moment after the answer."""
        self.inflight -= 1
        completion = self.observer.completion(answer, attempt.call.manner.streamed, status, gone)
        uid = answer.uid
        self._loop.after(
            self.observer.log_delay_s,
            lambda: self.obey(self.gate.complete(uid, completion, self._loop.now)),
        )
