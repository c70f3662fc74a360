"""Admission: all pools behind one door; the state machine that the driver and the simulator run.

Inputs are method calls with `now`, outputs are events, time is `next_timer` / `handle_timer`.
One writer; no I/O, no clock, no randomness of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from policy_server.core.events import Event, Lapsed, LimitChanged
from policy_server.core.learning import learned, restore_learned
from policy_server.core.leases import Lease
from policy_server.core.lengths import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS
from policy_server.core.limit.base import Limit
from policy_server.core.limit.registry import make_limit
from policy_server.core.outcome import LeaseEnd, ShedReason
from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.pool import Pool
from policy_server.core.request import Kind, Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.core.sampling import Rng

BATCH = 256  # held requests shed at once when draining


class Admission:
    """Every request of every pool, from its arrival to the end of its lease."""

    def __init__(
        self,
        pools: Sequence[PoolParams],
        rng: Rng,
        limit_factory: Callable[[LimitParams], Limit] = make_limit,
    ) -> None:
        self._rng = rng
        self._make_limit = limit_factory
        self._pools = {p.name: Pool(p, limit_factory(p.limit), rng) for p in pools}
        self._where: dict[str, Pool] = {}  # uid → pool, while it waits or holds a lease
        self._leaving: set[str] = set()  # a reload has removed them, but somebody is still there
        self._draining = self._held = self._jobs_held = self._jobs_paused = False

    def pool(self, name: str) -> Pool:
        """The pool of that name; KeyError when there is none."""
        return self._pools[name]

    def pools(self) -> Iterator[Pool]:
        """All pools, in configuration order."""
        return iter(self._pools.values())

    def reconfigure(self, pools: Sequence[PoolParams]) -> None:
        """New parameters for new arrivals; a pool that is gone keeps what it holds."""
        wanted = {p.name: p for p in pools}
        for name, params in wanted.items():
            if name in self._pools:
                self._pools[name].reconfigure(params, self._make_limit)
            else:
                self._pools[name] = Pool(params, self._make_limit(params.limit), self._rng)
                self._pools[name].draining = self._draining
        self._leaving = {name for name in self._pools if name not in wanted}
        self._let_go()
        self._hold()

    def _let_go(self) -> None:
        """Forget pools that are gone and that nobody is in any more."""
        for name in [n for n in self._leaving if self._pools[n].empty]:
            self._leaving.discard(name)
            del self._pools[name]

    # -- requests -----------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> list[Event]:
        """A request asks to go; that of a pool that is gone goes to the first one. No event for
        `request` itself = its uid waits already."""
        pool = self._where.get(request.uid) or self._pool_for(request)
        if pool.params.name != request.pool:  # other rules, but its place is where it was
            request = replace(request, pool=pool.params.name)
        return self._track(pool, pool.submit(request, now))

    def _pool_for(self, request: Request) -> Pool:
        return self._pools.get(request.pool) or next(iter(self._pools.values()))

    def cancel(self, uid: str, now: float) -> list[Event]:
        """The client of a waiting request left; nothing when it does not wait."""
        pool = self._where.get(uid)
        return [] if pool is None else self._track(pool, pool.cancel(uid, now))

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """An answer ended; a second end of one lease is nothing."""
        pool = self._where.get(uid)
        return [] if pool is None else self._track(pool, pool.complete(uid, completion, now))

    def restore(self, waiting: Iterable[Request], now: float) -> list[Event]:
        """Keep the places of those who waited before a restart; the dead are left out."""
        lost: list[Event] = []
        for request in waiting:
            pool = self._pools.get(request.pool)
            if pool is None or request.kind is not Kind.HELD or request.deadline <= now:
                lost.append(Lapsed(request))
                continue
            pool.room.keep_place(request, now)
            pool.door.restarted(now)
            self._where[request.uid] = pool
        return lost

    def restore_lease(self, request: Request, granted: float, now: float) -> bool:
        """`request` holds a slot since `granted`, before the restart; False when no pool has it."""
        pool = self._pools.get(request.pool)
        if pool is None or request.uid in self._where:
            return False
        pool.leases.restore(Lease(request, granted, False, 1.0, now))
        pool.predictor.drain.busy(now)
        self._where[request.uid] = pool
        return True

    def turn_of(self, request: Request) -> tuple[float, float] | None:
        """What its tenant was charged for in its line and as of when, while anyone waits there."""
        pool = self._where.get(request.uid) or self._pools.get(request.pool)
        if pool is None or not pool.room.anyone or request.kind is Kind.JOB or not len(pool.room):
            return None
        return pool.room.turns()[request.priority].turn(request.tenant)

    def restore_turn(self, pool: str, line: int, tenant: str, turn: tuple[float, float]) -> None:
        """Take back what `turn_of` gave; before `restore`, the latest first."""
        known = self._pools.get(pool)
        if known is not None and 0 <= line < len(known.room.turns()):
            known.room.turns()[line].restore(tenant, *turn)

    def restore_jobs(self, jobs: Iterable[Request]) -> None:
        """Jobs that waited before a restart, in order; those of a pool that is gone go to the
        first one. Nothing is decided yet: `pump`."""
        for job in jobs:
            pool = self._pool_for(job)
            name = pool.params.name
            pool.lines.restore_job(job if job.pool == name else replace(job, pool=name))
            self._where[job.uid] = pool

    def hold_all(self) -> None:
        """Let nobody go from here on; they wait for the next process, and their turns with them."""
        self._held = True
        self.hold_jobs()

    def hold_jobs(self) -> None:
        """Let no job go from here on; they wait for the next process."""
        self._jobs_held = True
        self._hold()

    def pause_jobs(self, paused: bool) -> None:
        """Let no job go for now, or let them go again (then `pump`)."""
        self._jobs_paused = paused
        self._hold()

    def _hold(self) -> None:
        for pool in self._pools.values():
            pool.lines.held = self._held
            pool.lines.jobs_held = self._jobs_held or self._jobs_paused

    def lease(self, uid: str) -> Lease | None:
        """The lease of `uid`, if it holds one."""
        pool = self._where.get(uid)
        return None if pool is None else pool.leases.get(uid)

    def drain(self, now: float) -> list[Event]:
        """Admit nothing new from here on and shed one batch of those who wait.

        Call again until `waiting()` is 0; the batches keep Envoy's flood guards quiet.
        """
        self._draining = True
        self.hold_jobs()
        events: list[Event] = []
        for pool in self._pools.values():
            pool.draining = True
            pool_events: list[Event] = []
            for request in list(islice(pool.room, BATCH - len(events))):
                pool.room.leave(request.uid)
                pool_events.append(pool._shed(request, ShedReason.DRAINING, now, None, True))
            events += self._track(pool, pool_events)
        return events

    def waiting(self) -> int:
        """Held requests that wait, over all pools."""
        return sum(len(p.room) for p in self._pools.values())

    def jobs_waiting(self) -> int:
        """Jobs that wait, over all pools."""
        return sum(len(p.jobs) for p in self._pools.values())

    def inflight(self) -> int:
        """Leases in use, over all pools, requests."""
        return sum(len(p.leases) for p in self._pools.values())

    def pump(self, now: float) -> list[Event]:
        """Dispatch whoever may go now, at most a batch per pool; for after a `reconfigure`."""
        events: list[Event] = []
        for pool in self._pools.values():
            events += self._track(pool, pool.pump(now))
        return events

    # -- time ---------------------------------------------------------------------------------

    def handle_timer(self, now: float) -> list[Event]:
        """Do all that is due by now."""
        if self._leaving:
            self._let_go()
        events: list[Event] = []
        for pool in self._pools.values():
            due = pool.next_timer()
            if due is not None and due <= now:
                events += self._track(pool, pool.handle_timer(now))
        return events

    def next_timer(self) -> float | None:
        """When `handle_timer` is due next, monotonic seconds; None = never."""
        soonest: float | None = None
        for pool in self._pools.values():
            due = pool.next_timer()
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    # -- signals ------------------------------------------------------------------------------

    def first_token(self, uid: str, now: float) -> None:
        """The first token of an observed answer."""
        pool = self._where.get(uid)
        lease = pool.leases.get(uid) if pool else None
        if pool is not None and lease is not None:
            pool.feedback.first_token(lease, now)

    def tokens(self, uid: str, count: int, now: float) -> None:
        """`count` more tokens of an observed answer, the last of them now; 0 = what came tells
        of none.

        More than `first_token` told; without that call the first chunk is told here alone.
        """
        pool = self._where.get(uid)
        lease = pool.leases.get(uid) if pool else None
        if pool is not None and lease is not None and count >= 0:
            pool.feedback.tokens(lease, count, now)

    def unreadable(self, uid: str) -> None:
        """No token of an observed stream can be counted: that none comes is no sign of a queue."""
        lease = self.lease(uid)
        if lease is not None:
            lease.readable = False

    def usage(self, uid: str, usage: Usage) -> None:
        """The token counts that the answer itself carries, as far as they can be true."""
        pool = self._where.get(uid)
        lease = pool.leases.get(uid) if pool else None
        if lease is not None:
            lease.completion_tokens = min(usage.completion_tokens, MAX_OUTPUT_TOKENS)
            lease.prompt_tokens = min(usage.prompt_tokens, MAX_PROMPT_TOKENS)
            lease.choices = max(1, usage.choices)

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        """`uid` is still under way at this Envoy."""
        self.touch(uid, now)
        self.node_alive(node, now)

    def touch(self, uid: str, now: float) -> None:
        """`uid` is still under way, as its own sender knows."""
        pool = self._where.get(uid)
        if pool is not None:
            pool.leases.touch(uid, now)

    def node_alive(self, node: str, now: float) -> None:
        """This Envoy's log says something."""
        for pool in self._pools.values():
            pool.leases.node_alive(node, now)

    def node_reborn(self, node: str, now: float) -> list[Event]:
        """The earlier lives of this Envoy are dead (`leases.is_past`), their requests with them."""
        events: list[Event] = []
        for pool in self._pools.values():
            uids = pool.leases.bury(node)
            ended = [pool._end_lease(u, LeaseEnd.EXPIRED, Completion(0), now) for u in uids]
            events += self._track(pool, [event for event in ended if event is not None])
            events += self._track(pool, pool.pump(now))
        return events

    def load_report(self, pool: str, source: str, report: LoadReport, now: float) -> None:
        """An engine of `pool` says how it is; nothing when a reload has removed that pool."""
        known = self._pools.get(pool)
        if known is not None:
            known.load_report(source, report, now)

    def backends(self, pool: str, ready: int | None, now: float) -> list[Event]:
        """`ready` back ends of `pool` can take work, None = nobody knows; who waits may go."""
        known = self._pools.get(pool)
        return [] if known is None else self._track(known, known.backends(ready, now))

    def pool_of(self, uid: str) -> str | None:
        """The pool where `uid` waits or holds a lease."""
        pool = self._where.get(uid)
        return None if pool is None else pool.params.name

    def knows(self, uid: str) -> bool:
        """Whether `uid` waits or holds a lease."""
        return uid in self._where

    def note_late(self, seconds: float) -> None:
        """The policy server itself was late by `seconds`: times taken meanwhile measure it."""
        for pool in self._pools.values():
            if pool.feedback.window is not None:
                pool.feedback.window.note_late(seconds)

    def forgive_retries(self, now: float, for_s: float) -> None:
        """Clients were refused without us: their returns in the next `for_s` are asked for."""
        for pool in self._pools.values():
            pool.refusals.retries.forgive(now, for_s)

    # -- learning -----------------------------------------------------------------------------

    def learned(self, now: float) -> dict[str, dict[str, float]]:
        """What each pool has learned, as flat numbers for the journal."""
        return {name: learned(pool, now) for name, pool in self._pools.items()}

    def restore_learned(self, state: Mapping[str, Mapping[str, float]], now: float) -> None:
        """Start warm: half the limit, the baselines and the drain rate whole."""
        for name, values in state.items():
            pool = self._pools.get(name)
            if pool is not None:
                restore_learned(pool, values, now)

    # -- bookkeeping --------------------------------------------------------------------------

    def _track(self, pool: Pool, events: list[Event]) -> list[Event]:
        """Keep uid → pool in step with what just happened."""
        where = self._where
        for event in events:
            if isinstance(event, LimitChanged):
                continue
            uid = event.request.uid
            if pool.knows(uid):
                where[uid] = pool
            else:
                where.pop(uid, None)
        return events
