"""`make sim`: every scenario, every control, all seeds; prints what holds and what does not.

SEEDS=5 (how many), or SEEDS=3,17 or SEEDS=3, (which)
ONLY=step,spike (some scenarios, by name or number)
JOBS=2 (processes)    JSON=out.json (the verdicts as data)
Exit code 0 when every bar holds and every control fails, else 1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from policy_server.simulate.scenarios.table import SCENARIOS, scenario
from policy_server.simulate.suite import Outcome, Verdict, judge, run_tasks, tasks_of
from policy_server.simulate.tables import verdict_json, verdict_table

CACHE = Path(".cache/simulate")
DEFAULT_SEEDS = 5


def seeds_of(text: str) -> list[int]:
    """`5` → 1..5, `3,17` → those two."""
    if "," in text:
        return [int(part) for part in text.split(",") if part.strip()]
    return list(range(1, int(text) + 1))


def main() -> int:
    """Run the suite."""
    if sys.argv[1:]:  # it takes none: twenty minutes of work are no answer to --help
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    console = Console(width=150 if not sys.stdout.isatty() else None)
    seeds = seeds_of(os.environ.get("SEEDS") or str(DEFAULT_SEEDS))
    only = [name for name in (os.environ.get("ONLY") or "").split(",") if name]
    chosen = [scenario(name) for name in only] or list(SCENARIOS)
    tasks = tasks_of(chosen, seeds)
    jobs = int(os.environ.get("JOBS") or min(2, os.cpu_count() or 1))
    started = time.monotonic()
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as progress:
        bar = progress.add_task("simulating", total=len(tasks))
        for outcome in run_tasks(tasks, CACHE, jobs):
            outcomes[outcome.task.scenario].append(outcome)
            progress.advance(bar)
    verdicts = [judge(item, outcomes[item.name]) for item in chosen]
    console.print(verdict_table(verdicts))
    _summary(console, verdicts, seeds, time.monotonic() - started)
    if path := os.environ.get("JSON"):
        Path(path).write_text(json.dumps([verdict_json(v) for v in verdicts], indent=1))
    return 0 if all(v.holds and not v.idle_controls for v in verdicts) else 1


def _summary(console: Console, verdicts: list[Verdict], seeds: list[int], seconds: float) -> None:
    for verdict in verdicts:
        for error in verdict.errors:
            console.print(f"[red]{verdict.scenario.name} crashed[/] {error}", highlight=False)
        if verdict.idle_controls:
            names = ", ".join(verdict.idle_controls)
            console.print(f"[yellow]{verdict.scenario.name}: control {names} fails no bar[/]")
    bars = [bar for verdict in verdicts for bar in verdict.bars]
    held = sum(bar.holds for bar in bars)
    console.print(
        f"{held} of {len(bars)} bars hold in {sum(v.holds for v in verdicts)} of "
        f"{len(verdicts)} scenarios; seeds {', '.join(map(str, seeds))}; {seconds:.0f} s. "
        "One of them again: make sim ONLY=<scenario> SEEDS=<seed>, (with the comma)"
    )


if __name__ == "__main__":
    sys.exit(main())
