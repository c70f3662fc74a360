"""One run: a world under a policy and a seed → a result.

    loop ── calls ──▶ gateway ──▶ gate (the production core or a control)
                        │  ▲          ▲
                     cluster └─ sink  └─ observer: what production would see, when it would

Same world, policy and seed: the same run, byte for byte (`log=True` keeps every event).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from policy_server.simulate.autoscaler import Scaling
from policy_server.simulate.backend import Answer, Sink
from policy_server.simulate.cluster import Cluster, Replica
from policy_server.simulate.engine import BatchEngine
from policy_server.simulate.fleet import Fleet
from policy_server.simulate.gate import Gate
from policy_server.simulate.gateway import Gateway
from policy_server.simulate.loop import Loop
from policy_server.simulate.observer import Observer
from policy_server.simulate.plain import PlainParams, PlainService
from policy_server.simulate.record import Result, Tick
from policy_server.simulate.seeds import stream
from policy_server.simulate.workload import Call, calls_of
from policy_server.simulate.world import Happening, What, World

LEARNED_EVERY_S = 60.0

MakeGate = Callable[[World, int], Gate]
"""A gate for a world and a seed."""

Progress = Callable[[float], None]
"""Called with the share that is done, 0..1."""


@dataclass(frozen=True, slots=True)
class Options:
    """`log` keeps every event as a line; `progress` hears how far the run is."""

    name: str = ""
    log: bool = False
    progress: Progress | None = None


PLAIN = Options()


def run(world: World, make_gate: MakeGate, seed: int, options: Options = PLAIN) -> Result:
    """Simulate it."""
    end = world.duration_s + world.settle_s
    stage = Stage(world, make_gate, seed, Result(options.name, seed, end))
    for gateway in stage.gateways:
        gateway.keep_log = options.log
    stage.begin()
    steps = 100 if options.progress else 1
    for step in range(1, steps + 1):
        stage.loop.run(end * step / steps)
        if options.progress:
            options.progress(step / steps)
    return stage.finish()


def build_replicas(world: World, loop: Loop, sink: Sink, seed: int) -> list[Replica]:
    """The model servers of a world."""
    replicas: list[Replica] = [
        PlainService(world.engine, loop, sink, stream(seed, f"service{index}"))
        if isinstance(world.engine, PlainParams)
        else BatchEngine(world.engine, loop, sink)
        for index in range(world.replicas)
    ]
    for replica, factor in zip(replicas, world.speeds, strict=False):
        replica.set_speed(factor)
    return replicas


class Fan:
    """Tells each answer's own gateway."""

    def __init__(self) -> None:
        self.gateways: Sequence[Gateway] = ()

    def _of(self, answer: Answer) -> Gateway:
        return self.gateways[int(answer.uid.partition("-")[0])]

    def first_token(self, answer: Answer) -> None:
        """The first token is out."""
        self._of(answer).first_token(answer)

    def finished(self, answer: Answer) -> None:
        """The last token is out."""
        self._of(answer).finished(answer)

    def failed(self, answer: Answer) -> None:
        """The engine died under it."""
        self._of(answer).failed(answer)


class Stage:
    """The parts of a run, wired."""

    def __init__(
        self,
        world: World,
        make_gate: MakeGate,
        seed: int,
        result: Result,
        loop: Loop | None = None,
    ) -> None:
        self.loop = loop or Loop()
        self._world, self._make_gate, self._seed, self._result = world, make_gate, seed, result
        fan = Fan()
        self._cluster = Cluster(
            build_replicas(world, self.loop, fan, seed), stream(seed, "balancer"), world.models
        )
        self.gateways = [self._gateway(index) for index in range(world.gateways)]
        fan.gateways = self.gateways

    def begin(self) -> None:
        """Schedule the first call, what happens, and the first tick."""
        world, seed = self._world, self._seed
        calls = world.calls(seed) if world.calls else calls_of(world.flows, seed, world.duration_s)
        self._next_call(calls, cycle(self.gateways))
        if world.scaling is not None:
            self._scale(world.scaling)
        for happening in world.happenings:
            self.loop.at(happening.at, partial(self._happen, happening))
        self._tick()

    def _scale(self, scaling: Scaling) -> None:
        """Most replicas are not there yet."""
        rng = stream(self._seed, "autoscaler")
        fleet = Fleet(scaling, self.loop, self._cluster, self._result, rng)
        slots = getattr(self._world.engine, "slots", 1)
        fleet.begin(self.gateways, lambda: slots)

    def finish(self) -> Result:
        """What is left at the end."""
        self._result.inflight_at_end = sum(gateway.inflight for gateway in self.gateways)
        self._result.leases_at_end = sum(gateway.gate.leases_now() for gateway in self.gateways)
        self._result.open_at_end = sum(gateway.open for gateway in self.gateways)
        self._learn()
        return self._result

    def _gateway(self, index: int) -> Gateway:
        world, seed = self._world, self._seed
        gateway = Gateway(
            self.loop,
            world.pool.classes,
            world.objectives,
            stream(seed, f"clients{index}"),
            self._result,
        )
        gate = self._make_gate(world, seed + 1000 * index)
        observer = Observer(self.loop, gate, self._cluster, world.visibility)
        gateway.wire(gate, self._cluster, observer, index)
        return gateway

    def _next_call(self, calls: Iterator[Call], gateways: Iterator[Gateway]) -> None:
        call = next(calls, None)
        if call is None:
            return

        def arrive() -> None:
            next(gateways).start(call)
            self._next_call(calls, gateways)

        self.loop.at(call.at, arrive)

    def _happen(self, happening: Happening) -> None:
        match happening.what:
            case What.OUTLIER:
                self.gateways[0].observer.outlier = happening.value
            case What.RESTART:
                for gateway in self.gateways:
                    fresh = partial(self._make_gate, self._world, self._seed + 1)
                    gateway.crash(happening.value, fresh)
            case _:
                indices = range(len(self._cluster.replicas))
                for index in indices if happening.replica is None else [happening.replica]:
                    self._change(happening, index)

    def _change(self, happening: Happening, index: int) -> None:
        replica = self._cluster.replicas[index]
        match happening.what:
            case What.SPEED:
                replica.set_speed(happening.value)
            case What.SLOTS:
                replica.set_slots(round(happening.value))
            case What.STALL:
                replica.stall(self.loop.now + happening.value)
            case What.KILL:
                self._cluster.kill(index)
            case What.REVIVE:
                self._cluster.revive(index)

    def _tick(self) -> None:
        reports = self._cluster.load()
        waiting = [gateway.gate.waiting_now() for gateway in self.gateways]
        self._result.ticks.append(
            Tick(
                at=self.loop.now,
                limit=sum(gateway.gate.limit_now() for gateway in self.gateways),
                inflight=sum(gateway.inflight for gateway in self.gateways),
                engine_queue=round(sum(report.waiting or 0.0 for report in reports)),
                engine_running=round(sum(report.running or 0.0 for report in reports)),
                waiting=tuple(sum(counts) for counts in zip(*waiting, strict=True)),
            )
        )
        learned = self._result.learned
        if not learned or self.loop.now - learned[-1][0] >= LEARNED_EVERY_S:
            self._learn()
        self.loop.after(self._world.tick_s, self._tick)

    def _learn(self) -> None:
        self._result.learned.append((self.loop.now, self.gateways[0].gate.learned_now()))
