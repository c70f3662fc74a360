"""One agent run fans out into 2,200 calls at once: the other tenants hardly notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policy_server.simulate.record import Result, quantile
from policy_server.simulate.scenarios.base import P1, SLOT_BOUND, Bench
from policy_server.simulate.workload import Flow, steady

CALLS = 2_200.0
START = 120.0
OTHERS = 9
REFUSED_S = 15.0
UNNOTICED_S = 0.5


def run(policy: str, seed: int, cache: Path, *, fan_out: bool) -> Result:
    bench = Bench(policy, seed, cache)
    unit = bench.calls_per_s(SLOT_BOUND)
    flows = [Flow(steady(0.08 * unit), P1, tenant=f"t{n}") for n in range(OTHERS)]
    burst = ((0.0, 0.0), (START, CALLS if fan_out else 0.0), (START + 1.0, 0.0))
    flows.append(Flow(burst, P1, tenant="agent"))
    world = replace(SLOT_BOUND, flows=tuple(flows), duration_s=240.0, settle_s=30.0)
    return bench.run(world)


def waits_s(result: Result) -> list[float]:
    """What the others wait in the two minutes from the fan-out on; refused = 15 s."""
    calls = [c for c in result.arrived(START, START + 120.0) if c.tenant != "agent"]
    return [c.wait_s if c.dispatched is not None else REFUSED_S for c in calls]


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_fan_out_waits_behind_itself(seed: int, tmp_path: Path) -> None:
    alone = quantile(waits_s(run("product", seed, tmp_path, fan_out=False)), 0.95)
    result = run("product", seed, tmp_path, fan_out=True)
    crowded = waits_s(result)
    assert quantile(crowded, 0.95) <= 1.3 * max(UNNOTICED_S, alone)
    # The seats that were free went to the agent: who comes in the first seconds waits for one.
    assert max(crowded) < REFUSED_S / 2, "nobody is refused"
    served = sum(c.dispatched is not None for c in result.calls if c.tenant == "agent")
    assert served >= 20, "it gets what the others leave"


def test_in_one_line_it_pushes_all_others_back(tmp_path: Path) -> None:
    assert quantile(waits_s(run("fifo-drop", 1, tmp_path, fan_out=True)), 0.95) >= 5.0
