"""The replicas of a run that come and go, driven by an autoscaler that asks as KEDA does.

A replica that is asked for is ready after its cold start; one that is no longer wanted takes no new
work and finishes what it has. The gates hear of the number PROBE_S later, as from a probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from policy_server.core.demand import Demand, demand_of
from policy_server.simulate.autoscaler import (
    CPU_TARGET,
    SYNC_S,
    Autoscaler,
    Scaling,
    Signal,
    asked_by,
    by_ratio,
)
from policy_server.simulate.cluster import Cluster
from policy_server.simulate.gate import POOL, CoreGate
from policy_server.simulate.gateway import Gateway
from policy_server.simulate.loop import Loop
from policy_server.simulate.record import Result

PROBE_S = 0.5
LOOK_S = 1.0
CPU_MEMORY = 30  # looks
NOTHING = Demand(waiting=0, jobs=0, inflight=0, limit=1.0)


class Fleet:
    """Owns which replicas of the cluster are up."""

    def __init__(
        self, scaling: Scaling, loop: Loop, cluster: Cluster, result: Result, rng: Random
    ) -> None:
        self._scaling, self._loop, self._cluster, self._result = scaling, loop, cluster, result
        self._autoscaler = Autoscaler(scaling.behaviour, scaling.start)
        self._phase = rng.random() * SYNC_S  # nobody's pulse waits for the autoscaler's clock
        self._up = list(range(scaling.start))
        self._starting: deque[int] = deque()
        self._cpu: deque[float] = deque(maxlen=CPU_MEMORY)

    def begin(self, gateways: Sequence[Gateway], slots: Callable[[], int]) -> None:
        """Some are there already; the rest is not."""
        self._gateways, self._slots = gateways, slots
        for index in range(len(self._cluster.replicas)):
            if index not in self._up:
                self._cluster.retire(index)
        self._tell()
        self._look()
        self._loop.after(self._phase, self._sync)

    def _look(self) -> None:
        running = sum(report.running or 0.0 for report in self._cluster.load())
        self._cpu.append(running / (self._slots() * len(self._up)) if self._up else 0.0)
        if self._scaling.signal is Signal.WAITING:
            self._autoscaler.wake(self._demand().active, self._loop.now)
            self._follow()
        self._result.replicas.append((self._loop.now, self._autoscaler.replicas, len(self._up)))
        self._loop.after(LOOK_S, self._look)

    def _sync(self) -> None:
        current, ready = self._autoscaler.replicas, len(self._up)
        if self._scaling.signal is Signal.WAITING:
            wanted = asked_by(self._demand(), current, ready)
        else:
            wanted = [by_ratio(sum(self._cpu) / len(self._cpu), CPU_TARGET, current, ready)]
        self._autoscaler.sync([*wanted, 0], self._loop.now)
        self._follow()
        self._loop.after(SYNC_S, self._sync)

    def _demand(self) -> Demand:
        """Over all policy servers; a gate that keeps no books asks for nothing."""
        gates = [g.gate for g in self._gateways if isinstance(g.gate, CoreGate)]
        told = [demand_of(gate.pool(POOL)) for gate in gates]
        if not told:
            return NOTHING
        return Demand(
            waiting=sum(d.waiting for d in told),
            jobs=sum(d.jobs for d in told),
            inflight=sum(d.inflight for d in told),
            limit=sum(d.limit for d in told),
            ready=len(self._up),
        )

    def _follow(self) -> None:
        """Start what is missing, let go of what is too much: first those not ready yet."""
        while len(self._up) + len(self._starting) < self._autoscaler.replicas:
            index = self._free()
            self._starting.append(index)
            self._loop.after(self._scaling.cold_start_s, partial(self._started, index))
        while len(self._up) + len(self._starting) > self._autoscaler.replicas:
            if self._starting:
                self._starting.pop()
            else:
                self._cluster.retire(self._up.pop())
                self._tell()

    def _free(self) -> int:
        taken = {*self._up, *self._starting}
        return next(i for i in range(len(self._cluster.replicas)) if i not in taken)

    def _started(self, index: int) -> None:
        if index in self._starting:
            self._starting.remove(index)
            self._up.append(index)
            self._cluster.revive(index)
            self._tell()

    def _tell(self) -> None:
        ready = len(self._up)

        def deliver() -> None:
            for gateway in self._gateways:
                if isinstance(gateway.gate, CoreGate):
                    gateway.obey(gateway.gate.backends(POOL, ready, self._loop.now))

        self._loop.after(PROBE_S, deliver)
