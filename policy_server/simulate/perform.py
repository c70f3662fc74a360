"""Runs what `policy-server simulate` was asked for, and shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from policy_server.simulate.asked import Ask
from policy_server.simulate.compare import compare_scenario, compare_trace
from policy_server.simulate.errors import InputError
from policy_server.simulate.forecasts import forecast_json, forecast_table, objective_lines
from policy_server.simulate.report.page import render
from policy_server.simulate.scenarios.table import SCENARIOS
from policy_server.simulate.scenarios.table import scenario as find_scenario
from policy_server.simulate.tables import measures_table, scenario_json
from policy_server.simulate.whatif import forecast, needed_replicas
from policy_server.simulate.world import World


def perform_scenario(name: str, ask: Ask) -> None:
    """A built-in scenario under each policy; `list` prints what there is."""
    if name == "list":
        typer.echo("\n".join(f"{s.number:>2} {s.name:16} {s.title}" for s in SCENARIOS))
        return
    item = find_scenario(name)
    with _progress() as tell:
        compared = compare_scenario(item, ask.policies, ask.seed, cache_dir(), tell)
    if ask.report is not None:
        _write(ask.report, render(compared.pages))
    if ask.as_json:
        typer.echo(json.dumps(scenario_json(item, ask.seed, compared.measures), indent=1))
    else:
        _show(measures_table(item, ask.seed, compared.measures))


def perform_trace(trace: Path, world: World, replicas: list[int], ask: Ask) -> None:
    """A user's traffic on each number of replicas."""
    with _progress() as tell:
        forecasts = []
        for done, count in enumerate(replicas):
            share = partial(_part, tell, done, len(replicas))
            forecasts.append(forecast(world, count, ask.seed, ask.policies[0], share))
    if ask.report is not None:
        shown = replace(world, replicas=needed_replicas(forecasts) or replicas[-1])
        with _progress() as tell:
            title = f"{trace.name} in the simulator"
            page = compare_trace(shown, title, ask.policies, ask.seed, tell)
        _write(ask.report, render([page]))
    if ask.as_json:
        typer.echo(json.dumps(forecast_json(forecasts), indent=1))
    else:
        _show(forecast_table(forecasts), objective_lines(forecasts))


def _show(*parts: RenderableType) -> None:
    """On stdout. Names of files and tenants are no markup."""
    console = Console(markup=False, emoji=False)
    for part in parts:
        console.print(part)


def _part(tell: Callable[[float], None], done: int, of: int, share: float) -> None:
    tell((done + share) / of)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror or error}") from error


def cache_dir() -> Path:
    """Where sweeps are kept: the user's cache, never the working directory."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "policy-server" / "simulate"


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """A bar on stderr, gone when done; nothing where nobody watches."""
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)
