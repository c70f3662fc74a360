"""Which webhooks may be called now: a line for each owner and receiver, with a bound of its own.

A receiver that hangs takes `PER_LINE` of the calls at most, an owner with many of them `PER_OWNER`;
the rest is there for the others. After a call that nobody answered the whole line waits, longer
each time: thousands that are due there are neither tried nor looked through again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlsplit

from policy_server.journal.jobs import Job, Taken

PER_LINE = 4
PER_OWNER = 32
FIRST_REST_S, LONGEST_REST_S = 5.0, 60.0
MAX_AWAY = 10_000
"""Receivers whose absence is remembered; who is forgotten is tried early once."""

Line = tuple[str, str]
K = TypeVar("K", bound=Hashable)


@lru_cache(maxsize=4096)
def line_of(owner: str, url: str) -> Line:
    """Owner and origin: what one tenant breaks on a host that others use is its own trouble."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return owner, url
    return owner, f"{parts.scheme}://{parts.netloc}".lower()


class Lines:
    """Who is being called, and who was away last."""

    def __init__(self) -> None:
        self._jobs: set[str] = set()
        self._calls: Counter[Line] = Counter()
        self._owners: Counter[str] = Counter()
        self._away: dict[Line, tuple[float, float]] = {}  # until when, the pause before that

    def begin(self, job: Job) -> None:
        """A call is under way."""
        self._jobs.add(job.id)
        self._calls[line_of(job.owner, job.webhook)] += 1
        self._owners[job.owner] += 1

    def end(self, job: Job) -> None:
        """It is over."""
        self._jobs.discard(job.id)
        _less(self._calls, line_of(job.owner, job.webhook))
        _less(self._owners, job.owner)

    def full(self) -> Taken:
        """Which calls have to wait; it counts those that it lets pass. Keeps to itself what it
        knows: it may be asked on another thread."""
        jobs, calls, owners = set(self._jobs), Counter(self._calls), Counter(self._owners)

        def taken(job_id: str, owner: str, url: str) -> bool:
            line = line_of(owner, url)
            if job_id in jobs or calls[line] >= PER_LINE or owners[owner] >= PER_OWNER:
                return True
            calls[line] += 1
            owners[owner] += 1
            return False

        return taken

    def away(self, job: Job, now: float) -> float | None:
        """Nobody answered: for how many seconds the line waits; None = it does already."""
        line = line_of(job.owner, job.webhook)
        until, before = self._away.get(line, (0.0, FIRST_REST_S / 2))
        if now < until:
            return None
        pause = min(2 * before, LONGEST_REST_S)
        if line not in self._away and len(self._away) >= MAX_AWAY:
            del self._away[next(iter(self._away))]
        self._away[line] = (now + pause, pause)
        return pause

    def well(self, job: Job) -> None:
        """Somebody answered."""
        self._away.pop(line_of(job.owner, job.webhook), None)


def _less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
