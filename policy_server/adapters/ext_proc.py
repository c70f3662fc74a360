"""The gate: Envoy's ext_proc service, one short stream per request.

The method is registered as stream-in, unary-out. On the wire that is the same as a stream with
one response, but grpc sends answer and status in one batch (a sixth of the whole cost of a
request), and returning without an answer, which Envoy reads as "let it through", is impossible.

Life of a stream: one message in, one decision, one answer. A request that must wait keeps exactly
one reader on its stream, because that is how Envoy tells that the client is gone (EOF) or that it
answers the client itself (`response_headers`). Every way out ends the place or the lease:

    answer                   admitted: the access log ends the lease; shed: nothing is held
    EOF, local reply         `leave`
    cancelled while waiting  `leave`; with the admission already decided: `never_sent`
    cancelled just after     the answer may be lost on the way: the access log ends the lease
    closing                  nothing: the place stays in the journal, Envoy re-sends the request
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import NoReturn, Protocol

import grpc

from policy_server.adapters.answers import Dialect, overloaded_answers, shed_answer
from policy_server.adapters.classify import Classified, Now, classify
from policy_server.adapters.ext_proc_messages import (
    Go,
    GoAnswers,
    empty_answer,
    facts_of,
    parse,
    passed,
    refusal,
)
from policy_server.adapters.ports import Gate
from policy_server.adapters.protos import ProcessingRequest
from policy_server.adapters.rules import ClassifyRules
from policy_server.adapters.streams import Context, end, metadata_value, read
from policy_server.core.events import Admitted, Shed
from policy_server.core.outcome import Outcome
from policy_server.core.request import Priority
from policy_server.driver import Hold

HANDBACK_BATCH = 256
"""Holds handed back between two turns of the loop, so that a shutdown is no flood."""
NODE_KEY = "x-policy-node"
GONE = grpc.StatusCode.ABORTED
"""Nobody waits for this stream any more. It must be a status that Envoy's retry policy does not
name: a stream that Envoy has half-closed is still sent again on `cancelled` or `unavailable`, as
a request whose client has left."""


class Observer(Protocol):
    """Takes over the streams of Envoy's observing filter."""

    async def follow(self, first: ProcessingRequest, context: Context) -> bytes:
        """Read the stream that began with `first` to its end."""
        ...


@dataclass(slots=True)
class Hooks:
    """Where telemetry listens.

    decided      gets the seconds that one decision took, holds excluded
    request_ids  uid → x-request-id of what is being decided or held now, for the logs
    """

    decided: Callable[[float], None] | None = None
    request_ids: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class GateCounts:
    """Streams that did not go the usual way."""

    strangers: int = 0  # governed, without a usable x-policy-uid
    broken: int = 0  # bytes that are no message, or a kind that is not known
    odd_starts: int = 0  # began with something other than request_headers
    overloaded: int = 0  # got the constant answer


@dataclass(frozen=True, slots=True)
class _Held:
    """What a waiting stream still needs; the message itself is gone by then."""

    uid: str
    hold: Hold
    dialect: Dialect
    upgrade: bool


class ExtProc:
    """The `ExternalProcessor` service. `rules` may be replaced at any time."""

    def __init__(
        self,
        gate: Gate,
        rules: ClassifyRules,
        observer: Observer,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        hooks: Hooks | None = None,
    ) -> None:
        self.counts = GateCounts()
        self._gate = gate
        self._observer = observer
        self._clock = clock
        self._wall_clock = wall_clock
        self._hooks = hooks or Hooks()
        self._holds: set[asyncio.Future[Admitted | Shed]] = set()
        self._passed = passed()
        self._overloaded = _overloaded_rounds()
        self.use(rules)

    def use(self, rules: ClassifyRules) -> None:
        """Classify new arrivals by these rules."""
        self._rules = rules
        self._go = GoAnswers(rules.orca_pools)

    @property
    def holding(self) -> int:
        """Streams that wait for their decision now."""
        return len(self._holds)

    async def process(self, _messages: object, context: Context) -> bytes:
        """One stream: read, decide, answer."""
        raw = await read(context)
        if raw is None:
            await end(context, GONE, "the stream closed without a request")
        if self._gate.closing.is_set():
            await _hand_back(context)
        message = parse(raw)
        kind = message.WhichOneof("request") if message is not None else None
        if message is None or kind is None:
            self.counts.broken += 1
            await end(context, grpc.StatusCode.INVALID_ARGUMENT, "not a known ProcessingRequest")
        if message.observability_mode:
            return await self._observer.follow(message, context)
        if kind != "request_headers":
            self.counts.odd_starts += 1
            return empty_answer(kind)
        decision = self._decide(message, context)
        if isinstance(decision, bytes):
            return decision
        del raw, message
        return await self._wait(decision, context)

    def _decide(self, message: ProcessingRequest, context: Context) -> bytes | _Held:
        began = self._clock()
        facts = facts_of(message, self._rules, metadata_value(context, NODE_KEY))
        seen = classify(facts, self._rules, Now(began, self._wall_clock()))
        answer = self._ask(seen)
        if self._hooks.decided is not None:
            self._hooks.decided(self._clock() - began)
        return answer

    def _ask(self, seen: Classified) -> bytes | _Held:
        gate, request = self._gate, seen.request
        if request is None:
            gate.count(seen.pool, seen.priority, Outcome.PASSED)
            return self._passed
        if seen.priority is not Priority.P0 and gate.lagging():
            self.counts.overloaded += 1
            gate.count(seen.pool, seen.priority, Outcome.SHED)
            return next(self._overloaded[seen.dialect])
        self.counts.strangers += seen.stranger
        names = self._hooks.request_ids
        names[request.uid] = seen.request_id
        decision = gate.submit(request)
        if isinstance(decision, Hold):
            return _Held(request.uid, decision, seen.dialect, seen.upgrade)
        names.pop(request.uid, None)
        return self._answer(decision, seen.dialect, seen.upgrade)

    def _answer(self, decision: Admitted | Shed, dialect: Dialect, upgrade: bool) -> bytes:
        if isinstance(decision, Shed):
            return refusal(shed_answer(decision, dialect))
        request = decision.request
        observe = decision.observe and not upgrade
        wait_ms = round(decision.wait_s * 1000)
        return self._go.of(Go(request.pool, request.priority, observe, wait_ms))

    async def _wait(self, held: _Held, context: Context) -> bytes:
        """Hold the stream until the driver decides or the client is gone."""
        future = held.hold.future
        self._holds.add(future)
        reader = asyncio.create_task(self._listen(held.hold, context))
        decision: Admitted | Shed | None = None
        try:
            decision = await future
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                self._gone(held.hold)
                raise
        except Exception:  # what the driver set: a newer stream has this uid
            await end(context, GONE, "a newer stream took this request over")
        finally:
            self._holds.discard(future)
            self._hooks.request_ids.pop(held.uid, None)
        if reader.done():
            self._gone(held.hold)
            if (local_reply := reader.result()) is not None:
                return local_reply
        elif decision is not None:
            return self._answer(decision, held.dialect, held.upgrade)
        elif self._gate.closing.is_set():
            await _hand_back(context)
        return await end(context, GONE, "the client left while it waited")

    def _gone(self, hold: Hold) -> None:
        """Give back what the client, now gone, had: its place, or a lease it never heard of."""
        future = hold.future
        if future.cancelled() or not future.done():
            if not self._gate.closing.is_set():
                self._gate.leave(hold)
        elif future.exception() is None and isinstance(future.result(), Admitted):
            self._gate.never_sent(future.result().request.uid)

    async def _listen(self, hold: Hold, context: Context) -> bytes | None:
        """The stream's one reader while it waits: the answer to a local reply, None at EOF.

        It is never cancelled: grpc ends the pending read with the call.
        """
        answer: bytes | None = None
        while answer is None and (raw := await read(context)) is not None:
            message = parse(raw)
            if message is not None and message.HasField("response_headers"):
                answer = empty_answer("response_headers")
        if not hold.future.done() and not self._gate.closing.is_set():
            try:
                self._gate.leave(hold)
            finally:
                hold.future.cancel()
        return answer

    async def hand_back_holds(self) -> None:
        """Wait for `closing`, then give every hold back to Envoy, in batches. Run as a task."""
        await self._gate.closing.wait()
        while self._holds:
            for future in list(self._holds)[:HANDBACK_BATCH]:
                self._holds.discard(future)
                future.cancel()
            await asyncio.sleep(0)


async def _hand_back(context: Context) -> NoReturn:
    await end(context, grpc.StatusCode.UNAVAILABLE, "shutting down; send it again")


def _overloaded_rounds() -> dict[Dialect, Iterator[bytes]]:
    return {
        dialect: cycle([refusal(answer) for answer in overloaded_answers(dialect)])
        for dialect in Dialect
    }


def _cancelled_from_outside() -> bool:
    """Whether the task itself was cancelled (the RPC is dead), not only the awaited future."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
