"""The desk: what all wirings share, from the facts about a request to the words of its answer.

A wiring (the ext_proc gate, the single stream, ext_authz) reads its messages into `Facts`, brings
an `Encoder` for the answers, and has its own way to notice that a client is gone. Deciding,
waiting, giving back and handing back are the same for all of them and happen here:

    decided at once          `Verdict`: the answer, and the lease that it grants
    waits                    `Held`; `wait` returns the decision when the driver makes it
    gone while it waits      its place is given up
    gone, already admitted   the lease that it never heard of is given back
    closing                  nothing: the place stays in the journal, Envoy re-sends the request
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple, NoReturn, Protocol

import grpc

from policy_server.adapters.answers import Dialect, HttpAnswer, overloaded_answers, shed_answer
from policy_server.adapters.classify import Classified, Facts, Now, classify
from policy_server.adapters.job_intake import not_our_job
from policy_server.adapters.ports import Gate, JobDesk
from policy_server.adapters.rules import ClassifyRules
from policy_server.adapters.streams import Context, end
from policy_server.adapters.tickets import Tickets
from policy_server.config_jobs import PASSPORT_HEADER
from policy_server.core.events import Admitted, Shed
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.driver import Hold, SupersededError

HANDBACK_BATCH = 256
"""Holds handed back between two turns of the loop, so that a shutdown is no flood."""
AGE_EVERY_S = 0.005
GONE = grpc.StatusCode.ABORTED
"""Nobody waits for this call any more. It must be a status that Envoy's retry policy does not
name: a stream that Envoy has half-closed is still sent again on `cancelled` or `unavailable`, as
a request whose client has left."""


class Go(NamedTuple):
    """An admission as the client's side sees it. `ask_load`: the engine shall say how it is.
    `uid`: the name that the log shall know the request by, "" where Envoy brought one along."""

    pool: str
    priority: Priority
    observe: bool = False
    ask_load: bool = False
    wait_ms: int = 0
    uid: str = ""


class Encoder(Protocol):
    """One wiring's serialized answers."""

    def passed(self) -> bytes:
        """Go on, ungoverned: no lease."""
        ...

    def refused(self, answer: HttpAnswer) -> bytes:
        """Envoy shall answer the client with this."""
        ...

    def admitted(self, go: Go) -> bytes:
        """Go on, with a lease."""
        ...


class Words:
    """The answers of one wiring. Those without a wait are few, so each is encoded once.

    `naming`: an admission says the request's uid, for Envoys that stamp none of their own.
    """

    def __init__(self, encoder: Encoder, naming: bool = False) -> None:
        self.naming = naming
        self.passed = encoder.passed()
        self.refused = encoder.refused
        self._encode = encoder.admitted
        self._ready: dict[tuple[str, Priority, bool, bool], bytes] = {}
        self._overloaded = {
            dialect: cycle([encoder.refused(answer) for answer in overloaded_answers(dialect)])
            for dialect in Dialect
        }

    def admitted(self, request: Request, observe: bool, ask_load: bool, wait_s: float) -> bytes:
        """The answer that lets the request go after `wait_s` in the room, see `Go`."""
        key = request.pool, request.priority, observe, ask_load
        if wait_s or self.naming:
            return self._encode(Go(*key, round(wait_s * 1000), request.uid if self.naming else ""))
        answer = self._ready.get(key)
        if answer is None:
            answer = self._ready[key] = self._encode(Go(*key))
        return answer

    def overloaded(self, dialect: Dialect) -> bytes:
        """The constant refusal, with the next of a few waits."""
        return next(self._overloaded[dialect])


class Verdict(NamedTuple):
    """An answer. `lease` is the admission that it tells, None when it tells none; `shed` is the
    refusal behind it, if it is one."""

    answer: bytes
    lease: Admitted | None = None
    shed: Shed | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a waiting call still needs; its message is gone by then."""

    uid: str
    hold: Hold
    dialect: Dialect


@dataclass(slots=True)
class Hooks:
    """Where telemetry listens.

    decided      gets the seconds that one decision took, holds excluded
    aged         gets the seconds since Envoy took a request in, of some of them
    unread       gets the pool of each request whose body Envoy could not read
    request_ids  uid → x-request-id of what is being decided or held now, for the logs
    """

    decided: Callable[[float], None] | None = None
    aged: Callable[[float], None] | None = None
    request_ids: dict[str, str] = field(default_factory=dict)
    unread: Callable[[str], None] | None = None


@dataclass(slots=True)
class DeskCounts:
    """Calls that did not go the usual way."""

    strangers: int = 0  # governed, without a usable identity
    broken: int = 0  # bytes that are no message, or a kind that is not known
    odd_starts: int = 0  # began with something other than request_headers
    overloaded: int = 0  # got the constant answer


class Desk:
    """Decides for all wirings. `rules` may be replaced at any time with `use`."""

    def __init__(
        self,
        gate: Gate,
        rules: ClassifyRules,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        hooks: Hooks | None = None,
        tickets: Tickets | None = None,
    ) -> None:
        self.counts = DeskCounts()
        self.jobs: JobDesk | None = None
        """Knows the jobs that come back through Envoy; None = there are none."""
        self.gate = gate
        self.rules = rules
        self.clock = clock
        self._wall_clock = wall_clock
        self._hooks = hooks or Hooks()
        self._tickets = tickets
        self._next_age = 0.0
        self._holds: set[asyncio.Future[Admitted | Shed]] = set()

    def use(self, rules: ClassifyRules) -> None:
        """Classify new arrivals by these rules."""
        self.rules = rules

    def wants_age(self, now: float) -> bool:
        """Whether it is time to look at when Envoy took a request in: it costs a little."""
        if now < self._next_age:
            return False
        self._next_age = now + AGE_EVERY_S
        return True

    @property
    def holding(self) -> int:
        """Calls that wait for their decision now."""
        return len(self._holds)

    def decide(self, facts: Facts, began: float, words: Words) -> Verdict | Held:
        """Decide on a request whose message came in at `began` (monotonic seconds)."""
        verdict = self.ask(self.see(facts, began), facts, words)
        self.took(began)
        return verdict

    def took(self, began: float) -> None:
        """A decision that began then is made."""
        if self._hooks.decided is not None:
            self._hooks.decided(self.clock() - began)

    def see(self, facts: Facts, began: float) -> Classified:
        """What the request is, by the rules in force."""
        if facts.taken_in and self._hooks.aged is not None:
            self._hooks.aged(self._wall_clock() - facts.taken_in)
        return classify(facts, self.rules, Now(began, self._wall_clock()))

    def ask(self, seen: Classified, facts: Facts, words: Words) -> Verdict | Held:
        """Decide on a request that has been looked at."""
        gate, request = self.gate, seen.request
        if PASSPORT_HEADER in facts.headers and self.jobs is not None:
            return self._dispatched(self.jobs, seen, facts, words)
        if request is None:
            gate.count(seen.pool, seen.priority, Outcome.PASSED)
            return Verdict(words.passed)
        if seen.priority is not Priority.P0 and gate.lagging() and not gate.knows(request.uid):
            self.counts.overloaded += 1
            gate.count(seen.pool, seen.priority, Outcome.SHED)
            return Verdict(words.overloaded(seen.dialect))
        self.counts.strangers += seen.stranger
        if seen.unread and self._hooks.unread is not None:
            self._hooks.unread(seen.pool)
        if seen.ticket and self._tickets is not None:
            request = self._tickets.redeem(seen.ticket, request, self._wall_clock())
        names = self._hooks.request_ids
        names[request.uid] = seen.request_id
        decision = gate.submit(request)
        if isinstance(decision, Hold):
            return Held(request.uid, decision, seen.dialect)
        names.pop(request.uid, None)
        return self.tell(decision, seen.dialect, words)

    def _dispatched(
        self, jobs: JobDesk, seen: Classified, facts: Facts, words: Words
    ) -> Verdict | Held:
        """A job on its way goes under the lease that it holds already. Whoever else says that
        it is one has nothing to look for here."""
        headers = facts.headers
        method, path = headers.get(":method", ""), headers.get(":path", "")
        uid = jobs.holder(headers[PASSPORT_HEADER], method, path)
        decision = self.gate.leased(uid) if uid is not None else None
        if decision is not None:
            return self.tell(decision, seen.dialect, words)
        self.gate.count(seen.pool, seen.priority, Outcome.INVALID)
        return Verdict(words.refused(not_our_job(seen.dialect)))

    def tell(self, decision: Admitted | Shed, dialect: Dialect, words: Words) -> Verdict:
        """The decision in the words of a wiring."""
        if isinstance(decision, Shed):
            if decision.request.or_job and decision.reason is not ShedReason.DRAINING:
                return Verdict(b"", shed=decision)  # its client is not refused
            told = shed_answer(decision, dialect, self._ticket(decision))
            return Verdict(words.refused(told), shed=decision)
        request = decision.request
        observe = decision.observe and request.observable
        ask_load = request.pool in self.rules.orca_pools
        return Verdict(words.admitted(request, observe, ask_load, decision.wait_s), decision)

    def _ticket(self, shed: Shed) -> str:
        return self._tickets.issue(shed, self._wall_clock()) if self._tickets is not None else ""

    # -- waiting --------------------------------------------------------------------------------

    async def wait(self, held: Held) -> Admitted | Shed | None:
        """The decision; None when the hold was given up or handed back meanwhile.

        A call that dies while it waits gives back what it had and raises CancelledError;
        SupersededError means that a newer call of the same request has taken over.
        """
        future, named = held.hold.future, True
        self._holds.add(future)
        try:
            return await future
        except SupersededError:
            named = False  # the newer call goes by the same uid
            raise
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                self.gone(held.hold)
                raise
            return None
        finally:
            self._holds.discard(future)
            if named:
                self._hooks.request_ids.pop(held.uid, None)

    def give_up(self, hold: Hold) -> None:
        """The client of a call that waits is gone: end its wait."""
        if not hold.future.done() and not self.gate.closing.is_set():
            try:
                self.gate.leave(hold)
            finally:
                hold.future.cancel()

    def gone(self, hold: Hold) -> None:
        """Give back what the client, now gone, had: its place, or a lease it never heard of."""
        future = hold.future
        if future.cancelled() or not future.done():
            if not self.gate.closing.is_set():
                self.gate.leave(hold)
        elif future.exception() is None and isinstance(decision := future.result(), Admitted):
            self.gate.never_sent(decision)

    # -- closing --------------------------------------------------------------------------------

    async def hand_back_holds(self) -> None:
        """Wait for `closing`, then give every hold back to Envoy, in batches. Run as a task."""
        await self.gate.closing.wait()
        while self._holds:
            for future in list(self._holds)[:HANDBACK_BATCH]:
                self._holds.discard(future)
                future.cancel()
            await asyncio.sleep(0)

    async def dismiss(self, context: Context) -> NoReturn:
        """End a call whose hold ended without a decision."""
        if self.gate.closing.is_set():
            await hand_back(context)
        await end(context, GONE, "the client left while it waited")


async def hand_back(context: Context) -> NoReturn:
    """End a call so that Envoy sends its request again."""
    await end(context, grpc.StatusCode.UNAVAILABLE, "shutting down; send it again")


async def taken_over(context: Context) -> NoReturn:
    """End a call whose request a newer one carries on."""
    await end(context, GONE, "a newer stream took this request over")


def _cancelled_from_outside() -> bool:
    """Whether the task itself was cancelled (the call is dead), not only the awaited future."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
