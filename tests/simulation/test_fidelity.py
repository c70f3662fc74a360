"""The simulator runs what production runs: the asyncio driver gives the same events."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from policy_server.core.request import Priority
from policy_server.driver import Driver
from policy_server.journal.memory import MemoryJournal
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gate import CoreGate, Gate
from policy_server.simulate.record import Result
from policy_server.simulate.run import Options, Stage, run
from policy_server.simulate.seeds import stream
from policy_server.simulate.workload import Flow, Lengths, Manner, steady
from policy_server.simulate.world import Happening, What, World, core_params
from tests.simulation.virtual_time import AsyncioLoop, DriverGate, VirtualTimeLoop

LENGTHS = ((0.0, Lengths(output=80)),)
WORLD = World(
    engine=EngineParams(slots=16),
    flows=(
        Flow(steady(6.0), Priority.P0, lengths=LENGTHS, manner=Manner(sdk=True)),
        Flow(steady(10.0), Priority.P1, lengths=LENGTHS, manner=Manner(patience_s=3.0)),
        Flow(steady(20.0), Priority.P2, lengths=LENGTHS, manner=Manner(streamed=False)),
    ),
    happenings=(Happening(40.0, What.STALL, 5.0),),
    duration_s=90.0,
    settle_s=60.0,
)


def through_the_driver(world: World, seed: int) -> Result:
    """The same world, with the asyncio driver on a virtual clock in the gate's place."""
    loop = VirtualTimeLoop()
    gates: list[DriverGate] = []

    def make(w: World, s: int) -> Gate:
        core = CoreGate([core_params(w)], stream(s, "core"))
        gates.append(DriverGate(Driver(core, MemoryJournal(), loop.time, loop), core))
        return gates[0]

    async def play() -> Result:
        end = world.duration_s + world.settle_s
        stage = Stage(world, make, seed, Result("driver", seed, end), AsyncioLoop(loop))
        stage.gateways[0].keep_log = True
        gates[0].gateway = stage.gateways[0]
        stage.begin()
        await asyncio.sleep(end)
        return stage.finish()

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_the_driver_and_the_simulator_tell_the_same_events(seed: int) -> None:
    def core(world: World, s: int) -> Gate:
        return CoreGate([core_params(world)], stream(s, "core"))

    simulated = run(WORLD, core, seed, Options(log=True))
    driven = through_the_driver(WORLD, seed)
    kinds = {line.split()[1].partition("(")[0] for line in simulated.log}
    assert kinds == {"Waiting", "Admitted", "Shed", "Cancelled", "LeaseEnded", "LimitChanged"}
    for one, other in zip(simulated.log, driven.log, strict=False):
        assert one == other
    assert len(simulated.log) == len(driven.log) > 5000


def test_the_driver_agrees_over_a_change_of_the_engine() -> None:
    world = replace(WORLD, happenings=(Happening(30.0, What.SLOTS, 8),), duration_s=60.0)

    def core(w: World, s: int) -> Gate:
        return CoreGate([core_params(w)], stream(s, "core"))

    assert run(world, core, 9, Options(log=True)).log == through_the_driver(world, 9).log
