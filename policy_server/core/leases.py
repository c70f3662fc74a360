"""Leases: which requests hold a slot at the engine. Every lease is granted once and ends once.

A lease ends by the access log's end entry. Entries can be lost, so a lease that has been silent
for `SILENCE_S` ends as expired, provided that its Envoy is talking at all: an Envoy whose log went
silent still carries its requests, and freeing them in a wave would over-admit. Leases of an Envoy
that stays silent go one by one (`TRICKLE_S` apart) once they are older than `ORPHAN_AGE_S`, so
that a dead Envoy or a missing access log can't lock a pool for ever. Who has seen an Envoy die (its
supervisor) says so, and the leases of that life end at once (`bury`); nothing that an Envoy merely
leaves unsaid is taken for its death.

Leases of before a restart are taken back whole, so that nothing is over-admitted. What ended while
nobody listened was told to nobody: a restored lease that is not heard of within `RECALL_S` after
its Envoy is back (a request or a log line of its), or `NO_CONTACT_S` after the restart if it does
not come back, ends as expired.

Heartbeats are a part of the Envoy configuration that we make, and so is the name by which an Envoy
says who it is. An Envoy without a name was configured by a mesh that knows no heartbeats: there
silence says nothing while its log talks, and only age, from `UNHEARD_AGE_S` on, frees a lease. Of
restored ones only the ends are heard of there: as long as they come, the others may be under way;
the rest ends as expired once none has come for `LULL_S`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policy_server.core.request import LINES, Request

HEARTBEAT_S = 2.0  # how often Envoy is told to log a request in progress
SILENCE_S = 20.0
NO_CONTACT_S = 10.0  # after a restart: an Envoy with answers under way would have come back
RECALL_S = HEARTBEAT_S + 0.5  # after a restart: within this every answer under way is heard of
LULL_S = 10.0  # without heartbeats: of k answers of T s under way one ends every T/k s
ORPHAN_AGE_S = 120.0
UNHEARD_AGE_S = 300.0  # longer than most answers, for the end entries that are lost
TRICKLE_S = 1.0
SWEEP_S = 1.0
MAX_NODES = 1024


def is_past(node: str, living: str) -> bool:
    """Whether `node` is an earlier life of `living`: both are NAME@LIFE, only the life differs."""
    name, at, _ = living.rpartition("@")
    return at != "" and node != living and node.rpartition("@")[0] == name


@dataclass(slots=True)
class Lease:
    """A slot in use. Times are monotonic seconds."""

    request: Request
    granted: float
    observed: bool
    weight: float  # how many live streams this observed one stands for
    last_seen: float
    wait_s: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    completion_tokens: int | None = None  # of all choices
    choices: int = 1
    prompt_tokens: int = 0
    expected_tokens: float = 0.0  # what its tenant was charged for: output
    expected_prompt: float = 0.0
    readable: bool = True  # observed, and its tokens can be counted
    restored: bool = False  # granted before a restart: no sample

    @property
    def streamed(self) -> bool:
        """Whether the answer comes token by token, as asked for or as seen."""
        return self.request.streamed or self.first_token is not None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None before there are two."""
        if self.first_token is None or self.last_token is None or self.tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.tokens - 1)

    @property
    def steps(self) -> int:
        """How many tokens one after the other the answer is long, as its usage tells; 0 = it does
        not. No choice is longer than was asked for: what `usage` sums up beyond that (the others
        of a `best_of`) was made beside it."""
        mean = (self.completion_tokens or 0) // max(1, self.choices)
        return min(mean, self.request.max_tokens or mean)


class LeaseTable:
    """The leases of one pool and the seats they take."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Lease] = {}
        """Read only."""
        self._order: dict[str, None] = {}  # by last sign of life, oldest first
        self._seats = [0] * LINES
        self._unheard: dict[str, None] = {}  # restored, without a sign of life since
        self._unheard_before = 0  # at the last look
        self._recalled = float("-inf")  # when there were last fewer of them
        self._contact: dict[str, float] = {}  # when each Envoy was first back
        self._nodes: dict[str, float] = {}  # by last word, oldest first
        self._last_log = float("-inf")
        self._last_trickle = float("-inf")
        self.seats = 0
        self.streamed = 0
        self.observed: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self.by_uid)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.by_uid.values())

    def get(self, uid: str) -> Lease | None:
        """The lease of `uid`, if it holds one."""
        return self.by_uid.get(uid)

    def seats_by_line(self) -> list[int]:
        """Seats in use by the held requests of each class, and by all jobs."""
        return [*self._seats]

    def grant(self, lease: Lease) -> None:
        """Take the seats. The uid must not hold a lease."""
        request = lease.request
        uid, seats = request.uid, request.seats
        if uid in self.by_uid:
            raise ValueError(f"{uid} already holds a lease")
        self.by_uid[uid] = lease
        self._order[uid] = None
        self.seats += seats
        self._seats[request.line] += seats
        self.streamed += request.streamed
        if lease.observed:
            self.observed[uid] = lease

    def restore(self, lease: Lease) -> None:
        """Take back a lease of before the restart."""
        lease.restored = True
        self.grant(lease)
        self._unheard[lease.request.uid] = None

    def note_contact(self, node: str, now: float) -> None:
        """This Envoy is there."""
        if self._unheard and node not in self._contact and len(self._contact) < MAX_NODES:
            self._contact[node] = now

    def end(self, uid: str) -> Lease | None:
        """Give the seats back; None when it held none (a second end is no error)."""
        lease = self.by_uid.pop(uid, None)
        if lease is None:
            return None
        request = lease.request
        seats = request.seats
        del self._order[uid]
        self._unheard.pop(uid, None)
        if lease.observed:
            self.observed.pop(uid, None)
        self.seats -= seats
        self._seats[request.line] -= seats
        self.streamed -= request.streamed
        return lease

    def touch(self, uid: str, now: float) -> None:
        """A sign of life of one request."""
        lease = self.by_uid.get(uid)
        if lease is None:
            return
        lease.last_seen = now
        self._unheard.pop(uid, None)
        self._order.pop(uid)
        self._order[uid] = None

    def node_alive(self, node: str, now: float) -> None:
        """An Envoy's log says something, whatever it is."""
        self.note_contact(node, now)
        self._nodes.pop(node, None)
        if len(self._nodes) >= MAX_NODES:
            del self._nodes[next(iter(self._nodes))]
        self._nodes[node] = now
        self._last_log = now

    def bury(self, node: str) -> list[str]:
        """Forget the earlier lives of this Envoy; the uids that they still hold leases for."""
        self._nodes = {n: heard for n, heard in self._nodes.items() if not is_past(n, node)}
        return [uid for uid, lease in self.by_uid.items() if is_past(lease.request.node, node)]

    def nodes(self) -> dict[str, float]:
        """When each Envoy's log was last heard, monotonic seconds."""
        return dict(self._nodes)

    def silent(self, now: float, limit: int) -> list[str]:
        """Up to `limit` uids whose lease must be taken to have ended unseen."""
        found = self._ended_unheard(now, limit)
        for uid in self._order:
            lease = self.by_uid[uid]
            if lease.last_seen > now - SILENCE_S or len(found) >= limit:
                break
            if (uid not in found and self._node_talks(lease, now)) or self._trickle_due(lease, now):
                found.append(uid)
        return found

    def _ended_unheard(self, now: float, limit: int) -> list[str]:
        if len(self._unheard) < self._unheard_before:
            self._recalled = now
        found: list[str] = []
        for uid in self._unheard:
            lease = self.by_uid[uid]
            node = lease.request.node
            back = self._contact.get(node, lease.last_seen + NO_CONTACT_S)
            due = back + RECALL_S if node else max(back, self._recalled) + LULL_S
            if now >= due and len(found) < limit:
                found.append(uid)
        self._unheard_before = len(self._unheard) - len(found)
        return found

    def _node_talks(self, lease: Lease, now: float) -> bool:
        node = lease.request.node
        if not node:
            return False
        heard = self._nodes.get(node, self._last_log)
        return heard > max(lease.last_seen, now - SILENCE_S)

    def _trickle_due(self, lease: Lease, now: float) -> bool:
        nameless = not lease.request.node and self._last_log > now - SILENCE_S
        age_s = UNHEARD_AGE_S if nameless else ORPHAN_AGE_S
        if now - lease.granted < age_s or now - self._last_trickle < TRICKLE_S:
            return False
        self._last_trickle = now
        return True
