"""Verdicts: the worst seed counts, and a control that fails nothing is called out."""

from __future__ import annotations

import io
from math import nan

import pytest
from rich.console import Console

from policy_server.simulate.errors import InputError
from policy_server.simulate.policies.registry import POLICIES
from policy_server.simulate.scenarios.base import Scenario, at_least, at_most
from policy_server.simulate.scenarios.table import SCENARIOS, scenario
from policy_server.simulate.suite import Outcome, Task, judge, tasks_of
from policy_server.simulate.tables import verdict_json, verdict_table

ITEM = Scenario(
    1, "one", "a scenario", (at_least("good", 0.9), at_most("bad", 2.0)), ("idle", "poor"), dict
)


def outcome(policy: str, seed: int, good: float, bad: float) -> Outcome:
    return Outcome(Task("one", policy, seed), {"good": good, "bad": bad})


def test_the_worst_seed_counts_and_says_by_how_much() -> None:
    verdict = judge(ITEM, [outcome("product", 1, 0.95, 1.0), outcome("product", 2, 0.8, 1.5)])
    good, bad = verdict.bars
    assert (good.holds, good.worst, good.seed) == (False, 0.8, 2)
    assert good.bar.missed_by(good.worst) == pytest.approx(0.1)
    assert (bad.holds, bad.worst, bad.seed) == (True, 1.5, 2)
    assert not verdict.holds


def test_a_control_must_miss_a_bar_on_every_seed() -> None:
    runs = [outcome("product", seed, 1.0, 0.0) for seed in (1, 2)]
    runs += [outcome("idle", 1, 0.1, 0.0), outcome("idle", 2, 1.0, 0.0)]
    runs += [outcome("poor", seed, 0.1, 0.0) for seed in (1, 2)]
    verdict = judge(ITEM, runs)
    assert verdict.idle_controls == ("idle",)
    assert verdict.bars[0].missed_by_controls == ("poor",)
    assert verdict.bars[1].missed_by_controls == ()
    assert verdict.holds


def test_a_measure_that_is_missing_or_not_a_number_holds_nothing() -> None:
    assert not judge(ITEM, [outcome("product", 1, nan, 0.0)]).holds
    assert not judge(ITEM, [Outcome(Task("one", "product", 1), {})]).holds
    crashed = judge(ITEM, [Outcome(Task("one", "product", 7), error="boom")])
    assert not crashed.holds
    assert "seed 7" in crashed.errors[0]


def test_the_table_shows_bar_seed_verdict_and_controls() -> None:
    verdict = judge(ITEM, [outcome("product", 4, 0.5, 0.0), outcome("poor", 4, 0.1, 9.0)])
    text = io.StringIO()
    Console(file=text, width=140).print(verdict_table([verdict]))
    for word in ("good ≥ 0.9", "misses by 0.4", "holds", "poor", "4"):
        assert word in text.getvalue()
    assert verdict_json(verdict)["holds"] is False


def test_the_table_of_scenarios_is_whole() -> None:
    assert [item.number for item in SCENARIOS] == list(range(1, 31))
    assert len({item.name for item in SCENARIOS}) == 30
    for item in SCENARIOS:
        assert item.bars
        assert item.controls
        assert set(item.controls) <= POLICIES.keys(), item.name


def test_scenarios_are_found_by_name_and_number() -> None:
    assert scenario("3") is scenario("step")
    with pytest.raises(InputError, match="3 step"):
        scenario("stap")


def test_long_scenarios_run_first_and_on_fewer_seeds() -> None:
    tasks = tasks_of(SCENARIOS, [1, 2, 3, 4, 5])
    assert tasks[0].scenario == "long-haul"
    assert {t.seed for t in tasks if t.scenario == "long-haul"} == {1, 2}
