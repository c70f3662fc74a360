"""The ext_authz wiring: Envoy asks with a unary `Check` and waits for as long as it is told to.

The caller's deadline (`grpc_service.timeout`) bounds the wait; it can only shorten it. A client
that leaves cancels the call. What tells that an admitted request has ended is the access log, as
with the gate. There is no observer here: the limit knows what the log and the engines' own load
reports say.

    answer                   admitted: the access log ends the lease; denied: nothing is held
    cancelled while waiting  `leave`; with the admission already decided: `never_sent`
    closing                  UNAVAILABLE: the place stays in the journal, Envoy asks again
"""

from __future__ import annotations

import grpc

from policy_server.adapters.desk import (
    NODE_KEY,
    Desk,
    Held,
    Verdict,
    Words,
    hand_back,
    taken_over,
)
from policy_server.adapters.ext_authz_messages import (
    CheckEncoder,
    facts_of_check,
    log_knows,
    parse_check,
    time_left_s,
)
from policy_server.adapters.streams import Context, end, metadata_value
from policy_server.driver import SupersededError


class ExtAuthz:
    """The `Authorization` service. `last_asked` is monotonic seconds, None = never."""

    def __init__(self, desk: Desk) -> None:
        self.last_asked: float | None = None
        self._desk = desk
        self._words = Words(CheckEncoder())
        self._naming = Words(CheckEncoder(), naming=True)

    async def check(self, raw: bytes, context: Context) -> bytes:
        """One request: the answer, when there is one."""
        desk = self._desk
        if desk.gate.closing.is_set():
            await hand_back(context)
        message = parse_check(raw)
        if message is None or not message.HasField("attributes"):
            desk.counts.broken += 1
            await end(context, grpc.StatusCode.INVALID_ARGUMENT, "not a CheckRequest")
        began = self.last_asked = desk.clock()
        left_s = time_left_s(context.time_remaining())
        facts = facts_of_check(message, desk.rules, metadata_value(context, NODE_KEY), left_s)
        words = self._words if log_knows(message) else self._naming
        verdict = desk.decide(facts, began, words)
        if isinstance(verdict, Verdict):
            return verdict.answer
        del message, raw
        return await self._wait(verdict, context, words)

    async def _wait(self, held: Held, context: Context, words: Words) -> bytes:
        try:
            decision = await self._desk.wait(held)
        except SupersededError:
            await taken_over(context)
        if decision is None:
            await self._desk.dismiss(context)
        return self._desk.tell(decision, held.dialect, words).answer
