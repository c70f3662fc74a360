"""The ext_authz wiring: Envoy asks with a unary `Check` and waits for as long as it is told to.

The caller's deadline (`grpc_service.timeout`) bounds the wait; it can only shorten it. A client
that leaves cancels the call. What tells that an admitted request has ended is the access log, as
with the gate. There is no observer here: the limit knows what the log and the engines' own load
reports say.

    answer                   admitted: the access log ends the lease; denied: nothing is held
    cancelled while waiting  `leave`; with the admission already decided: `never_sent`
    closing                  UNAVAILABLE: the place stays in the journal, Envoy asks again

A job comes whole, its body with the Check (`with_request_body`, on the route of those who prefer
`respond-async`), and 202 is a "denial" of that status. A Check that Envoy sends again after a crash
finds its job by its uid.
"""

from __future__ import annotations

from dataclasses import replace

import grpc

from policy_server.adapters.answers import HttpAnswer
from policy_server.adapters.classify import Classified, Facts
from policy_server.adapters.desk import (
    Desk,
    Held,
    Verdict,
    Words,
    hand_back,
    taken_over,
)
from policy_server.adapters.ext_authz_messages import (
    CheckEncoder,
    content_of_check,
    facts_of_check,
    log_knows,
    parse_check,
    taken_in,
    time_left_s,
)
from policy_server.adapters.job_intake import JobIntake, prefers_job
from policy_server.adapters.protos import CheckRequest
from policy_server.adapters.streams import NODE_KEY, Context, end, metadata_value
from policy_server.core.outcome import ShedReason
from policy_server.driver import SupersededError


class ExtAuthz:
    """The `Authorization` service. `asked`: Checks have come in at all."""

    def __init__(self, desk: Desk, intake: JobIntake | None = None) -> None:
        self.asked = False
        self._desk = desk
        self._intake = intake
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
        self.asked = True
        began = desk.clock()
        left_s = time_left_s(context.time_remaining())
        facts = facts_of_check(message, desk.rules, metadata_value(context, NODE_KEY), left_s)
        if desk.wants_age(began):
            facts = facts._replace(taken_in=taken_in(message))
        words = self._words if log_knows(message) else self._naming
        if self._intake is not None and prefers_job(facts.headers.get("prefer", "")):
            return await self._maybe_job(self._intake, (message, facts), context, words)
        verdict = desk.decide(facts, began, words)
        if isinstance(verdict, Verdict):
            return verdict.answer
        del message, raw
        return (await self._wait(verdict, context, words)).answer

    async def _maybe_job(
        self, intake: JobIntake, asked: tuple[CheckRequest, Facts], context: Context, words: Words
    ) -> bytes:
        """A request that prefers to become a job, with its body, where Envoy sends that."""
        desk, (message, facts) = self._desk, asked
        seen = desk.see(facts, desk.clock())
        headers, body = content_of_check(message)
        wish = intake.wish(seen, headers, ended=False)
        if isinstance(wish, HttpAnswer):
            return words.refused(wish)
        if wish is None or len(body) != wish.length:
            # this Envoy keeps the body to itself, or a part of it
            verdict = desk.ask(seen, facts, words)
            if isinstance(verdict, Held):
                verdict = await self._wait(verdict, context, words)
            return verdict.answer
        with intake.receiving(wish) as room:  # it is in memory from now on
            if not room:
                return words.refused(intake.busy(seen))
            if wish.waits:
                verdict = await self._direct((seen, facts), context, words)
                if verdict.shed is None or verdict.shed.reason is ShedReason.DRAINING:
                    return verdict.answer
            return words.refused(await intake.take(wish, seen, body))

    async def _direct(
        self, asked: tuple[Classified, Facts], context: Context, words: Words
    ) -> Verdict:
        """A direct answer to one that would be a job if none comes in time."""
        seen, facts = asked
        if seen.request is not None:
            seen = seen._replace(request=replace(seen.request, or_job=True))
        verdict = self._desk.ask(seen, facts, words)
        return await self._wait(verdict, context, words) if isinstance(verdict, Held) else verdict

    async def _wait(self, held: Held, context: Context, words: Words) -> Verdict:
        try:
            decision = await self._desk.wait(held)
        except SupersededError:
            await taken_over(context)
        if decision is None:
            await self._desk.dismiss(context)
        return self._desk.tell(decision, held.dialect, words)
