"""An autoscaler as Kubernetes has it: the HorizontalPodAutoscaler's rule, and KEDA's last step.

    per replica     wanted = ceil(total / target)                   (metricType AverageValue)
    a ratio         wanted = ceil(ready · value / target)           (metricType Value, and CPU)
    within 10 % of the target: as many as there are; several metrics: the largest
    up              at once, at most `up_percent` more per `up_period_s`
    down            the largest wanted of the last `stabilization_s`, at most `down_pods` fewer per
                    `down_period_s`
    0 → 1           KEDA, as soon as there is anything to do
    1 → 0           KEDA, after `cooldown_s` without anything to do

Pure: `now` in seconds. `Behaviour()` is that of `envoy/keda/scaledobject.yaml` (a test compares).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from policy_server.core.demand import Demand

SYNC_S = 15.0
TOLERANCE = 0.1
WAITING_TARGET = 2.0
UTILIZATION_TARGET = 0.8
CPU_TARGET = 0.8


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How fast it may go. Seconds, replicas."""

    up_percent: float = 100.0
    up_period_s: float = 15.0
    stabilization_s: float = 300.0
    down_pods: int = 1
    down_period_s: float = 60.0
    cooldown_s: float = 300.0
    min_replicas: int = 0
    max_replicas: int = 8


class Signal(Enum):
    """What it scales on."""

    WAITING = "waiting"  # this project's scaler: waiting per replica and utilization of the limit
    CPU = "cpu"  # mean load of the replicas over the last half minute; never below one replica


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas that come and go in a run. `start` are there at the beginning."""

    signal: Signal = Signal.WAITING
    start: int = 1
    cold_start_s: float = 28.0
    behaviour: Behaviour = field(default_factory=Behaviour)


def per_replica(total: float, target: float, current: int) -> int:
    """Replicas for `total` at `target` each."""
    if current and abs(total / (target * current) - 1.0) <= TOLERANCE:
        return current
    return math.ceil(total / target)


def by_ratio(value: float, target: float, current: int, ready: int) -> int:
    """Replicas that bring `value` to `target`."""
    if abs(value / target - 1.0) <= TOLERANCE:
        return current
    return math.ceil(ready * value / target)


def asked_by(demand: Demand, current: int, ready: int) -> list[int]:
    """What the two triggers of our ScaledObject ask for."""
    return [
        per_replica(demand.waiting, WAITING_TARGET, current),
        by_ratio(demand.utilization, UTILIZATION_TARGET, current, max(ready, 1)),
    ]


class Autoscaler:
    """Remembers what it wanted and did; `replicas` are those that it has asked for."""

    def __init__(self, behaviour: Behaviour, replicas: int, now: float = 0.0) -> None:
        self.replicas = replicas
        self._b = behaviour
        self._wanted: deque[tuple[float, int]] = deque()
        self._moves: deque[tuple[float, int]] = deque()  # (when, how many more)
        self._active_at = now

    def wake(self, active: bool, now: float) -> int:
        """KEDA's part, as often as it hears of activity: between 0 and 1."""
        if active:
            self._active_at = now
            if self.replicas == 0:
                self._go_to(1, now)
        elif now - self._active_at >= self._b.cooldown_s and self._b.min_replicas == 0:
            self._go_to(0, now)
        return self.replicas

    def sync(self, wanted: Sequence[int], now: float) -> int:
        """The HPA's part, every SYNC_S: between 1 and the most."""
        if self.replicas == 0:
            return 0
        most = min(max(*wanted, self._b.min_replicas, 1), self._b.max_replicas)
        self._wanted.append((now, most))
        while self._wanted[0][0] < now - self._b.stabilization_s:
            self._wanted.popleft()
        if most > self.replicas:
            before = self.replicas - self._moved(self._b.up_period_s, now, up=True)
            self._go_to(min(most, math.ceil(before * (1 + self._b.up_percent / 100))), now)
        elif most < self.replicas:
            stable = min(max(n for _, n in self._wanted), self.replicas)
            before = self.replicas - self._moved(self._b.down_period_s, now, up=False)
            self._go_to(max(stable, min(self.replicas, before - self._b.down_pods)), now)
        return self.replicas

    def _moved(self, period_s: float, now: float, up: bool) -> int:
        return sum(by for at, by in self._moves if at > now - period_s and (by > 0) is up)

    def _go_to(self, replicas: int, now: float) -> None:
        if replicas != self.replicas:
            self._moves.append((now, replicas - self.replicas))
            self.replicas = replicas
        longest = max(self._b.up_period_s, self._b.down_period_s)
        while self._moves and self._moves[0][0] < now - longest:
            self._moves.popleft()
