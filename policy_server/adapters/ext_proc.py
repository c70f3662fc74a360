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
from typing import Protocol

import grpc

from policy_server.adapters.desk import (
    GONE,
    Desk,
    Held,
    Verdict,
    Words,
    hand_back,
    taken_over,
)
from policy_server.adapters.ext_proc_messages import (
    Asker,
    GateEncoder,
    empty_answer,
    facts_of,
    parse,
)
from policy_server.adapters.protos import ProcessingRequest
from policy_server.adapters.streams import NODE_KEY, Context, end, metadata_value, read
from policy_server.driver import Hold, SupersededError

Listener = asyncio.Task[ProcessingRequest | None]


class Observer(Protocol):
    """Takes over the streams of Envoy's observing filter."""

    async def follow(self, first: ProcessingRequest, context: Context) -> bytes:
        """Read the stream that began with `first` to its end."""
        ...


class ExtProc:
    """The `ExternalProcessor` service of the gate wiring.

    `node`: the Envoy that all its streams come from; None = each stream's metadata is asked.
    """

    def __init__(
        self, desk: Desk, observer: Observer, node: str | None = None, words: Words | None = None
    ) -> None:
        self._desk = desk
        self._observer = observer
        self._node = node
        self._words = words or Words(GateEncoder())

    def of(self, node: str) -> ExtProc:
        """The same for the streams of one Envoy, in the same words."""
        return ExtProc(self._desk, self._observer, node, self._words)

    async def process(self, _messages: object, context: Context) -> bytes:
        """One stream: read, decide, answer."""
        message, kind = await opening(self._desk, context)
        if message.observability_mode:
            return await self._observer.follow(message, context)
        if kind != "request_headers":
            self._desk.counts.odd_starts += 1
            return empty_answer(kind)
        verdict = self._decide(message, context)
        if isinstance(verdict, Verdict):
            return verdict.answer
        del message
        return await self._wait(verdict, context)

    def _decide(self, message: ProcessingRequest, context: Context) -> Verdict | Held:
        desk = self._desk
        began = desk.clock()
        node = metadata_value(context, NODE_KEY) if self._node is None else self._node
        asker = Asker(node, True, desk.wants_age(began))
        facts = facts_of(message, desk.rules, asker)
        return desk.decide(facts, began, self._words)

    async def _wait(self, held: Held, context: Context) -> bytes:
        listener = asyncio.create_task(listen(self._desk, held.hold, context))
        return (await waited(self._desk, held, self._words, (context, listener))).answer


async def opening(desk: Desk, context: Context) -> tuple[ProcessingRequest, str]:
    """A stream's first message and its kind. Ends a stream that has none, or any while closing."""
    raw = await read(context)
    if raw is None:
        await end(context, GONE, "the stream closed without a request")
    if desk.gate.closing.is_set():
        await hand_back(context)
    message = parse(raw)
    kind = message.WhichOneof("request") if message is not None else None
    if message is None or kind is None:
        desk.counts.broken += 1
        await end(context, grpc.StatusCode.INVALID_ARGUMENT, "not a known ProcessingRequest")
    return message, kind


async def listen(desk: Desk, hold: Hold | None, context: Context) -> ProcessingRequest | None:
    """The answer that Envoy gives its client by itself, or the body that it was asked for; None at
    EOF. The end of a wait, with a body nobody has asked for passed over.

    While a request waits this is its stream's one reader, a task that is never cancelled: grpc
    ends the pending read with the call.
    """
    found = None
    while found is None and (raw := await read(context)) is not None:
        message = parse(raw)
        kind = message.WhichOneof("request") if message is not None else None
        waits = hold is not None and not hold.future.done()
        if kind == "response_headers" or (kind == "request_body" and not waits):
            found = message
    if hold is not None:
        desk.give_up(hold)
    return found


async def waited(desk: Desk, held: Held, words: Words, stream: tuple[Context, Listener]) -> Verdict:
    """Hold the stream until the driver decides; the empty answer when Envoy answered its client."""
    context, listener = stream
    try:
        decision = await desk.wait(held)
    except SupersededError:
        await taken_over(context)
    if listener.done():
        desk.gone(held.hold)
        if listener.result() is not None:
            return Verdict(empty_answer("response_headers"))
    elif decision is not None:
        return desk.tell(decision, held.dialect, words)
    return await desk.dismiss(context)
