"""ext_proc streams with more than one message each way: of jobs, and single streams.

    request headers   decide, hold, answer
    a job             ask for the body, take it, write it down, answer 202

A request that says `wait=N` beside `respond-async` waits for a direct answer first; when that does
not come in time, its body is asked for and it becomes a job. From the moment at which the body is
asked for Envoy can't send the request again: should this process die then, the client gets a 503
and repeats the request, safely if it has an idempotency key.

What follows an admission differs: the gate is done, a single stream goes on (`Carry`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote

import grpc

from policy_server.adapters.answers import HttpAnswer
from policy_server.adapters.classify import Classified
from policy_server.adapters.desk import Desk, Held, Verdict, Words
from policy_server.adapters.ext_proc import Listener, Observer, listen, opening, waited
from policy_server.adapters.ext_proc_messages import (
    Asker,
    GateEncoder,
    body_wanted,
    empty_answer,
    facts_of,
)
from policy_server.adapters.job_intake import JobIntake, Wish
from policy_server.adapters.protos import ProcessingRequest
from policy_server.adapters.streams import NODE_KEY, Context, metadata_value
from policy_server.config_jobs import TARGET_CHARS
from policy_server.core.outcome import ShedReason


class Call(NamedTuple):
    """A stream and what its Envoy says of itself."""

    context: Context
    node: str
    observable: bool = True


Carry = Callable[[Verdict, Call, Listener | None], Awaitable[None]]
"""Tell the admission, and stay with the request for as long as the wiring wants."""


class Dialogue:
    """From the request headers to the answer, or to the admission that `carry` takes over."""

    def __init__(self, desk: Desk, intake: JobIntake | None, words: Words, carry: Carry) -> None:
        self._desk = desk
        self._intake = intake
        self._words = words
        self._carry = carry

    async def hold(self, message: ProcessingRequest, call: Call) -> None:
        """One stream that began with request headers."""
        desk = self._desk
        began = desk.clock()
        asker = Asker(call.node, call.observable, desk.wants_age(began))
        facts = facts_of(message, desk.rules, asker)
        seen = desk.see(facts, began)
        wish = self._wish(message, seen)
        del message
        if isinstance(wish, HttpAnswer):
            await say(call.context, self._words.refused(wish))
            return
        listener: Listener | None = None
        if wish is not None:
            if not wish.waits:
                await self._take(wish, seen, call, None)
                return
            assert seen.request is not None
            seen = seen._replace(request=replace(seen.request, or_job=True))
        decided = desk.ask(seen, facts, self._words)
        desk.took(began)
        if isinstance(decided, Held):
            listener = asyncio.create_task(listen(desk, decided.hold, call.context))
            decided = await waited(desk, decided, self._words, (call.context, listener))
        await self._go_on(decided, wish, seen, (call, listener))

    def _wish(self, message: ProcessingRequest, seen: Classified) -> Wish | HttpAnswer | None:
        if self._intake is None:
            return None
        ended = message.request_headers.end_of_stream
        return self._intake.wish(seen, _all_headers(message), ended=ended)

    async def _go_on(
        self,
        verdict: Verdict,
        wish: Wish | None,
        seen: Classified,
        stream: tuple[Call, Listener | None],
    ) -> None:
        call, listener = stream
        shed = verdict.shed
        if wish is not None and shed is not None and shed.reason is not ShedReason.DRAINING:
            await self._take(wish, seen, call, listener)
        elif verdict.lease is not None:
            await self._carry(verdict, call, listener)
        else:
            await say(call.context, verdict.answer)

    async def _take(
        self, wish: Wish, seen: Classified, call: Call, listener: Listener | None
    ) -> None:
        """Take the body and accept the job."""
        assert self._intake is not None
        with self._intake.receiving(wish) as room:
            if not room:
                await say(call.context, self._words.refused(self._intake.busy(seen)))
                return
            body = b"" if wish.empty else await self._body(call, listener)
            if body is not None:
                answer = await self._intake.take(wish, seen, body)
                await say(call.context, self._words.refused(answer))

    async def _body(self, call: Call, listener: Listener | None) -> bytes | None:
        """Ask for the body; None when the client is gone, or Envoy answers it itself."""
        if not await say(call.context, body_wanted()):
            return None
        message = await (listener or listen(self._desk, None, call.context))
        if message is None:
            return None
        if not message.HasField("request_body"):
            await say(call.context, empty_answer("response_headers"))
            return None
        body: bytes = message.request_body.body
        return body


class GateJobs:
    """The streams of the gate's job route: they end with their answer, as the gate's do."""

    def __init__(self, desk: Desk, observer: Observer, intake: JobIntake | None) -> None:
        self._desk = desk
        self._observer = observer
        self._dialogue = Dialogue(desk, intake, Words(GateEncoder()), _tell)

    async def process(self, _messages: object, context: Context) -> None:
        """One stream."""
        message, kind = await opening(self._desk, context)
        if message.observability_mode:
            await self._observer.follow(message, context)
        elif kind != "request_headers":
            self._desk.counts.odd_starts += 1
            await say(context, empty_answer(kind))
        else:
            node = metadata_value(context, NODE_KEY)
            await self._dialogue.hold(message, Call(context, node))


async def _tell(verdict: Verdict, call: Call, _listener: Listener | None) -> None:
    """The access log ends the lease, as with every admission of the gate."""
    await say(call.context, verdict.answer)


async def say(context: Context, answer: bytes) -> bool:
    """Write, quietly when the call is dead already; whether it was written."""
    with contextlib.suppress(grpc.aio.BaseError):
        await context.write(answer)
        return True
    return False


def _all_headers(message: ProcessingRequest) -> Iterator[tuple[str, str]]:
    """In a path what is no ASCII is escaped, as it is sent on: nothing of it is replaced."""
    for header in message.request_headers.headers.headers:
        raw = header.raw_value or header.value.encode()
        target = header.key == ":path"
        text = quote(raw, safe=TARGET_CHARS) if target else raw.decode("utf-8", "replace")
        yield header.key, text
