"""The autoscaler of the simulator: the HPA's arithmetic, KEDA's first and last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_server.core.demand import Demand
from policy_server.simulate.autoscaler import (
    UTILIZATION_TARGET,
    WAITING_TARGET,
    Autoscaler,
    Behaviour,
    asked_by,
    by_ratio,
    per_replica,
)

ROOT = Path(__file__).resolve().parents[3]


def scaler(replicas: int, **behaviour: Any) -> Autoscaler:
    return Autoscaler(Behaviour(**behaviour), replicas)


def test_its_behaviour_is_that_of_our_scaled_object() -> None:
    spec = yaml.safe_load((ROOT / "envoy/keda/scaledobject.yaml").read_text("utf-8"))["spec"]
    rules = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    (up,), (down,) = rules["scaleUp"]["policies"], rules["scaleDown"]["policies"]
    assert Behaviour() == Behaviour(
        up_percent=up["value"],
        up_period_s=up["periodSeconds"],
        stabilization_s=rules["scaleDown"]["stabilizationWindowSeconds"],
        down_pods=down["value"],
        down_period_s=down["periodSeconds"],
        cooldown_s=spec["cooldownPeriod"],
        min_replicas=spec["minReplicaCount"],
        max_replicas=spec["maxReplicaCount"],
    )
    waiting, utilization = (trigger["metadata"] for trigger in spec["triggers"])
    assert float(waiting["waitingPerReplica"]) == WAITING_TARGET
    assert float(utilization["utilization"]) == UTILIZATION_TARGET


@pytest.mark.parametrize(
    ("total", "current", "wanted"), [(0, 1, 0), (2, 1, 1), (3, 1, 2), (100, 4, 50), (8.4, 4, 4)]
)
def test_so_many_per_replica(total: float, current: int, wanted: int) -> None:
    assert per_replica(total, 2.0, current) == wanted


@pytest.mark.parametrize(
    ("value", "ready", "wanted"), [(0.8, 4, 4), (0.85, 4, 4), (1.6, 4, 8), (0.4, 4, 2), (0.0, 4, 0)]
)
def test_a_ratio_is_brought_to_its_target(value: float, ready: int, wanted: int) -> None:
    assert by_ratio(value, 0.8, 4, ready) == wanted


def test_a_pool_that_keeps_up_is_not_shrunk_for_having_nobody_waiting() -> None:
    busy = Demand(waiting=0, jobs=0, inflight=52, limit=64.0, ready=4)
    assert max(asked_by(busy, 4, 4)) == 4


def test_it_doubles_every_quarter_of_a_minute_and_no_faster() -> None:
    auto = scaler(1)
    assert [auto.sync([50], at) for at in (0.0, 5.0, 15.0, 30.0, 45.0)] == [2, 2, 4, 8, 8]


def test_it_goes_down_one_a_minute_after_five_quiet_ones() -> None:
    auto = scaler(4)
    auto.sync([4], 0.0)
    counts = {at: auto.sync([1], float(at)) for at in range(15, 600, 15)}
    assert counts[300] == 4
    assert (counts[315], counts[360], counts[375], counts[435]) == (3, 3, 2, 1)
    assert counts[585] == 1


def test_the_first_request_wakes_it_and_five_minutes_without_any_put_it_to_sleep() -> None:
    auto = scaler(0)
    assert auto.wake(False, 0.0) == 0
    assert auto.sync([9], 1.0) == 0  # the HPA does not act at zero
    assert auto.wake(True, 2.0) == 1
    assert auto.wake(False, 301.0) == 1
    assert auto.wake(False, 302.0) == 0


def test_a_start_counts_as_activity() -> None:
    assert scaler(3).wake(False, 10.0) == 3
