"""Replicas that come and go: what their number means for the limit.

    ready 0          nothing is dispatched; whoever waits waits for the first replica
    ready n → m      the learned limit follows at once: L · m/n, for what it learned about n
    a new replica    brings its share in slowly: w(t) = min(1, START + (1 − START)·age / ramp_s)
    usable limit     L · Σ w(t) / m
    the first one    comes as long after somebody asked for it as the last time; when that is not
                     known or over, as long again as it is being waited for, at least the budget

A replica that has just loaded its weights is slower than its siblings: caches are empty, kernels
compile on the first shapes, and a balancer sends it all that is new because it has nothing to do.
The limit that follows the number at once spares the long climb (√L/4 per window from a quarter of
the goal takes minutes), the ramp spares the newcomer; a wrong guess is cut like any other limit.

A limit that has learned nothing yet is a slow start already, so it gets no ramp on top. Which
replica left is not known, only how many: the oldest is taken, so that a rolling update counts its
newcomers as new.

Invariants: 0 < share ≤ 1; without anybody who tells the number, everything is as if there were
replicas. Owner: the pool; pure.
"""

from __future__ import annotations

from policy_server.core.request import Kind, Request

RAMP_S = 20.0  # some dozens of answers: kernels compiled, prefix cache filled
START = 0.25  # of a full share; the first answers of a newcomer take up to four times as long
STEP_S = 0.5  # how often a ramp is looked at while somebody waits
WARM = float("-inf")


class Ramp:
    """The replicas of one pool. Times are monotonic seconds."""

    def __init__(self, ramp_s: float = RAMP_S, wait_s: float | None = None) -> None:
        """`wait_s`: how long a request waits for the first one, None = nobody tells of them."""
        self._ramp_s, self._wait_s = ramp_s, wait_s
        self.told = False
        """Whether anybody has said anything yet, be it that nobody knows."""
        self.ready: int | None = None
        """Replicas that can take work; None = nobody knows."""
        self.learned_with = 0
        """Replicas that the limit stands for; 0 = it has not worked with a known number yet."""
        self._since: list[float] = []  # when each ready replica came, oldest first
        self._gone_at = WARM  # when the last one went
        self._asked_at: float | None = None  # when somebody first waited for one since
        self._took_s: float | None = None  # the last time, until one was ready

    def reconfigure(self, ramp_s: float, wait_s: float | None) -> None:
        """New bounds; the replicas stay."""
        self._ramp_s, self._wait_s = ramp_s, wait_s

    @property
    def closed(self) -> bool:
        """Whether nobody may go: no replica can take work, or nothing has been heard yet."""
        return self._wait_s is not None and (not self.told or self.ready == 0)

    def patient(self, request: Request) -> Request:
        """While there is none, a held request may wait for the first one; a job does anyway."""
        if self._wait_s is None or not self.closed:
            return request
        if self._asked_at is None:
            self._asked_at = max(request.arrived, self._gone_at)
        return request.waiting_up_to(self._wait_s) if request.kind is Kind.HELD else request

    def first_in_s(self, budget_s: float, now: float) -> float:
        """When the first one will probably be there, seconds from now, while there is none; at
        least `budget_s` while nothing is known."""
        waited_s = 0.0 if self._asked_at is None else max(0.0, now - self._asked_at)
        if self._took_s is not None and self._took_s > waited_s:
            return self._took_s - waited_s
        return max(budget_s, waited_s)

    def tell(self, ready: int | None, now: float) -> float:
        """So many are ready from now on; the factor by which the learned limit changes.

        The first number after a start is no change: those replicas have been there before.
        """
        first, self.told = not self.told, True
        self._note_first(ready, now)
        self.ready = ready
        if ready is None:
            self._since = []
            return 1.0
        came = WARM if first or not self.learned_with else now
        gone = max(0, len(self._since) - ready)
        self._since = self._since[gone:] + [came] * (ready - len(self._since))
        if ready == 0:
            return 1.0
        factor = ready / self.learned_with if self.learned_with else 1.0
        self.learned_with = ready
        return factor

    def _note_first(self, ready: int | None, now: float) -> None:
        if self.ready == 0 and ready:
            if self._asked_at is not None:
                self._took_s = max(0.0, now - self._asked_at)
            self._asked_at = None
        elif self.ready and ready == 0:
            self._gone_at, self._asked_at = now, None

    def share(self, now: float) -> float:
        """Part of the limit that may be used now, above 0, up to 1."""
        if not self._since or self._warm(now):
            return 1.0
        return sum(self._weight(now - came) for came in self._since) / len(self._since)

    def _weight(self, age_s: float) -> float:
        if age_s >= self._ramp_s:
            return 1.0
        return START + (1.0 - START) * max(0.0, age_s) / self._ramp_s

    def next_step(self, now: float) -> float:
        """When to look again; `now` when nothing ramps."""
        return now if self._warm(now) else now + STEP_S

    def _warm(self, now: float) -> bool:
        """Whether even the newest is a full one."""
        return not self._since or now - self._since[-1] >= self._ramp_s
