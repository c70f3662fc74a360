"""Runs scenarios over seeds, judges the worst seed, and checks that every control fails.

A bar that no control misses proves nothing, so the verdict of a scenario says for each bar which
controls missed it on every seed.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan, nan
from multiprocessing import get_context
from pathlib import Path

from policy_server.simulate.scenarios.base import Bar, Bench, Scenario
from policy_server.simulate.scenarios.table import scenario

PRODUCT = "product"


@dataclass(frozen=True, slots=True)
class Task:
    """One policy in one scenario under one seed."""

    scenario: str
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What it measured; `error` instead when it crashed."""

    task: Task
    measures: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class BarVerdict:
    """One bar: the worst value over the seeds and its seed, and the controls that miss it."""

    bar: Bar
    worst: float
    seed: int
    missed_by_controls: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the worst seed holds it."""
        return self.bar.holds(self.worst)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scenario."""

    scenario: Scenario
    bars: tuple[BarVerdict, ...]
    idle_controls: tuple[str, ...]  # controls that failed no bar: they prove nothing
    errors: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether all bars hold."""
        return not self.errors and all(bar.holds for bar in self.bars)


def tasks_of(scenarios: Iterable[Scenario], seeds: Sequence[int]) -> list[Task]:
    """Everything to run, the long scenarios first so that no process idles at the end."""
    listed = sorted(scenarios, key=lambda s: s.max_seeds)
    return [
        Task(item.name, policy, seed)
        for item in listed
        for policy in (PRODUCT, *item.controls)
        for seed in seeds[: item.max_seeds]
    ]


def perform(task: Task, cache: Path | None) -> Outcome:
    """Run one task; a crash is an outcome, too."""
    try:
        measures = scenario(task.scenario).measure(Bench(task.policy, task.seed, cache))
    except Exception:  # whatever it is, it is shown with its seed and the other tasks go on
        return Outcome(task, error=traceback.format_exc(limit=-3))
    return Outcome(task, dict(measures))


def run_tasks(tasks: Sequence[Task], cache: Path | None, processes: int) -> Iterator[Outcome]:
    """Outcomes as they come."""
    work = partial(perform, cache=cache)
    if processes == 1:
        yield from map(work, tasks)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(work, tasks)


def judge(item: Scenario, outcomes: Iterable[Outcome]) -> Verdict:
    """The verdict over all seeds of a scenario."""
    by_policy: dict[str, list[Outcome]] = defaultdict(list)
    errors = []
    for outcome in sorted(outcomes, key=lambda o: o.task.seed):
        by_policy[outcome.task.policy].append(outcome)
        if outcome.error:
            errors.append(f"{outcome.task.policy}, seed {outcome.task.seed}: {outcome.error}")
    controls = {name: by_policy[name] for name in item.controls if by_policy[name]}
    bars = tuple(_bar_verdict(bar, by_policy[PRODUCT], controls) for bar in item.bars)
    idle = tuple(name for name, runs in controls.items() if not _fails(item.bars, runs))
    return Verdict(item, bars, idle, tuple(errors))


def _bar_verdict(
    bar: Bar, product: Sequence[Outcome], controls: dict[str, list[Outcome]]
) -> BarVerdict:
    measured = {o.task.seed: o.measures.get(bar.measure, nan) for o in product}
    worst, seed = nan, -1
    if measured:
        values = list(measured.values())
        worst = nan if any(map(isnan, values)) else bar.worst(values)
        seed = next((s for s, v in measured.items() if v == worst or isnan(v)), -1)
    missed = tuple(
        name
        for name, runs in controls.items()
        if all(not bar.holds(o.measures.get(bar.measure, nan)) for o in runs)
    )
    return BarVerdict(bar, worst, seed, missed)


def _fails(bars: Sequence[Bar], runs: Sequence[Outcome]) -> bool:
    """Whether a control misses some bar on every seed."""
    return all(any(not bar.holds(o.measures.get(bar.measure, nan)) for bar in bars) for o in runs)
