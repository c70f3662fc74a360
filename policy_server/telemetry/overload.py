"""Is this process too slow to decide on everybody? Three witnesses, of whom two must agree.

    late   every timer of the look ran more than 50 ms late, three at least
    old    the youngest of eight requests or more was 100 ms old when it got here, above the
           youngest of the last minute: what waits in sockets and in gRPC shows nowhere else
           (CoDel's idea, Nichols and Jacobson 2012: a queue is what even the luckiest waits in)
    busy   the loop's thread had a core for 70 % of the look

Each of them alone lies: on a machine with noisy neighbours timers are late now and then, a client
that sends its body slowly makes its request old, and a thread that is busy may be in time. A look
is a quarter of a second; two looks without two witnesses end it. In the first seconds nothing is
refused: what comes then has waited elsewhere already and must not lose its place.

Readings above 50 ms are told apart from all that: what was measured meanwhile measures us.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LOOK_S = 0.25
LATE_S = 0.05  # a few of these on one answer and a P0 would feel the gate
LATE_READINGS = 3  # with 20 ms between them and 50 ms each most of a look
OLD_S = 0.1  # above what Envoy, the network and clocks that differ make
AGES = 8
FLOOR_S = 60.0
BUSY = 0.7
CALM_LOOKS = 2
GRACE_S = 5.0
WITNESSES = 2


class OverloadGuard:
    """Judges the loop it runs on. `cpu` gives the CPU seconds that the loop's thread has used.

    `on_turn` is called with the new state when it turns, `on_late` with each late reading, seconds.
    """

    def __init__(
        self,
        now: float,
        cpu: Callable[[], float],
        on_turn: Callable[[bool], None],
        on_late: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._cpu = cpu
        self._on_turn = on_turn
        self._on_late = on_late
        self._ready_at = now + GRACE_S
        self._floors = (math.inf, math.inf)  # of this minute and of the one before
        self._floor_at = now
        self._calm = 0
        self._lagging = False
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._began, self._cpu_then = now, self._cpu()
        self._readings, self._least_lag_s = 0, math.inf
        self._ages, self._youngest_s = 0, math.inf

    @property
    def lagging(self) -> bool:
        """Whether the lower classes should get the cheap answer."""
        return self._lagging

    def arrived(self, age_s: float) -> None:
        """A request was that old when the gate saw it; the clocks need not agree."""
        self._ages += 1
        self._youngest_s = min(self._youngest_s, age_s)

    def reading(self, lag_s: float, now: float) -> None:
        """A timer ran so late."""
        self._readings += 1
        self._least_lag_s = min(self._least_lag_s, lag_s)
        if lag_s > LATE_S:
            self._on_late(lag_s)
        if now - self._began >= LOOK_S:
            self._judge(now)
            self._begin(now)

    def _judge(self, now: float) -> None:
        late = self._readings >= LATE_READINGS and self._least_lag_s > LATE_S
        busy = self._cpu() - self._cpu_then >= BUSY * (now - self._began)
        if late + busy + self._old(now) >= WITNESSES:
            self._calm = 0
            self._turn(now >= self._ready_at)
        else:
            self._calm += 1
            if self._calm >= CALM_LOOKS:
                self._turn(False)

    def _old(self, now: float) -> bool:
        this, before = self._floors
        old = self._ages >= AGES and self._youngest_s > min(this, before) + OLD_S
        if now - self._floor_at >= FLOOR_S:
            self._floor_at, this, before = now, math.inf, this
        self._floors = (min(this, self._youngest_s), before)
        return old

    def _turn(self, lagging: bool) -> None:
        if lagging is not self._lagging:
            self._lagging = lagging
            self._on_turn(lagging)
