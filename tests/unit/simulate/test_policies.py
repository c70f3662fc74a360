"""The controls do what their originals do, and the sweep finds what an engine can take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from policy_server.core.events import Admitted, Shed
from policy_server.core.limit.base import Reason, WindowSample
from policy_server.core.outcome import ShedReason
from policy_server.core.params import LimitParams
from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.errors import InputError
from policy_server.simulate.gateway import Objectives
from policy_server.simulate.oracle import best_static
from policy_server.simulate.policies.envoy_gradient import MIN_LIMIT, EnvoyGradientGate
from policy_server.simulate.policies.fifo import FifoGate
from policy_server.simulate.policies.netflix_vegas import NetflixVegas, end_to_end
from policy_server.simulate.policies.registry import POLICIES, policy
from policy_server.simulate.run import run
from policy_server.simulate.workload import Flow, steady
from policy_server.simulate.world import World

DONE = Completion(200, first_byte_s=0.0, last_byte_s=1.0)


def request(uid: str, at: float = 0.0, budget_s: float = 5.0) -> Request:
    return Request(uid, "default", Priority.P1, arrived=at, deadline=at + budget_s)


def window(latency_s: float, least_s: float, peak: int = 100) -> WindowSample:
    return WindowSample(
        now=0.0,
        duration_s=2.0,
        events=10,
        inflight=peak,
        peak_inflight=peak,
        bound=True,
        latency_s=latency_s,
        latency_min_s=least_s,
    )


def test_vegas_grows_without_a_queue_and_shrinks_with_one() -> None:
    vegas = NetflixVegas(LimitParams(initial=50), end_to_end)
    assert vegas.on_window(window(1.0, 1.0)).reason is Reason.PROBE
    assert vegas.on_window(window(1.0, 1.0)).reason is Reason.GROW
    grown = vegas.current
    assert vegas.on_window(window(5.0, 1.0)).reason is Reason.QUEUE
    assert vegas.current < grown


def test_vegas_reads_the_spread_of_equal_work_as_a_queue() -> None:
    vegas = NetflixVegas(LimitParams(initial=200), end_to_end)
    for _ in range(400):
        vegas.on_window(window(5.0, 0.5))
    assert vegas.current < 20


def test_vegas_holds_when_the_limit_was_not_used() -> None:
    vegas = NetflixVegas(LimitParams(initial=50), end_to_end)
    vegas.on_window(window(1.0, 1.0))
    assert vegas.on_window(window(1.0, 1.0, peak=3)).reason is Reason.HOLD


def test_envoys_gradient_starts_at_three_measures_min_rtt_then_grows() -> None:
    gate = EnvoyGradientGate(Random(1))
    events = [gate.submit(request(f"{n}"), 0.0)[0] for n in range(4)]
    assert [type(event) for event in events] == [Admitted, Admitted, Admitted, Shed]
    for n in range(3):
        gate.complete(f"{n}", DONE, 1.0)
    now = 1.0
    for n in range(400):
        now += 1.0
        gate.submit(request(f"x{n}"), now - 1.0)
        gate.complete(f"x{n}", DONE, now)
        if n == 40:
            assert gate.limit_now() == MIN_LIMIT
        if gate.limit_now() > 10:
            break
    assert gate.limit_now() > 10


def test_fifo_is_one_line_over_all_classes() -> None:
    gate = FifoGate(1, early_drop=True)
    assert isinstance(gate.submit(request("a"), 0.0)[0], Admitted)
    assert gate.submit(request("b", 0.0), 0.0) == []
    assert gate.submit(request("c", 0.0, budget_s=0.5), 0.0) == []
    gate.cancel("b", 0.1)
    shed = gate.complete("a", DONE, 2.0)[1]
    assert isinstance(shed, Shed)
    assert (shed.request.uid, shed.reason) == ("c", ShedReason.DEADLINE)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs_and_ends_clean(name: str) -> None:
    world = World(
        engine=EngineParams(slots=8),
        flows=(Flow(steady(6.0), Priority.P0), Flow(steady(6.0), Priority.P2)),
        duration_s=40.0,
        settle_s=200.0,
    )
    result = run(world, lambda w, seed: policy(name).make(w, seed, 8.0), 1)
    assert any(call.ended for call in result.calls)
    assert result.inflight_at_end == 0


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="envoy-gradient"):
        policy("magic")


def test_the_sweep_finds_the_slots_and_remembers(tmp_path: Path) -> None:
    world = World(engine=EngineParams(slots=32), flows=(Flow(steady(1.0)),))
    best = best_static(world, tmp_path)
    assert 26 <= best.limit <= 44
    # a full batch of 32 at 10.7 ms + 32 · .2 ms, slowed by its prefill
    assert best.tokens_per_s == pytest.approx(1560, rel=0.08)
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert best_static(world, tmp_path) == best


def test_the_sweep_respects_the_objective() -> None:
    base = World(engine=EngineParams(slots=1000), flows=(Flow(steady(1.0)),))
    tight = replace(base, objectives=Objectives(ttft_s=2.0, tpot_s=0.03))
    loose = replace(base, objectives=Objectives(ttft_s=2.0, tpot_s=0.06))
    assert best_static(tight, None).limit < 0.7 * best_static(loose, None).limit
