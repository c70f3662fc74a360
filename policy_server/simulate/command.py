"""`policy-server simulate`: a trace or a scenario in virtual time, as a table, JSON and a page.

`cli` registers it with the function that reads a configuration file, because this package knows
the core only:  app.command("simulate")(simulate_command(load_pools))
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from policy_server.core.params import PoolParams
from policy_server.simulate.compare import compare_scenario, compare_trace
from policy_server.simulate.errors import InputError
from policy_server.simulate.forecasts import forecast_json, forecast_table, objective_lines
from policy_server.simulate.options import (
    EngineOptions,
    TrafficOptions,
    engine_of,
    pool_of,
    replicas_of,
    world_of,
)
from policy_server.simulate.report.page import render
from policy_server.simulate.scenarios.table import SCENARIOS
from policy_server.simulate.scenarios.table import scenario as find_scenario
from policy_server.simulate.tables import measures_table, scenario_json
from policy_server.simulate.whatif import forecast, needed_replicas
from policy_server.simulate.world import World


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is wanted of any run."""

    policies: list[str]
    seed: int
    report: Path | None
    as_json: bool


LoadPools = Callable[[Path | None], Sequence[PoolParams]]
"""Reads a configuration file (None = the defaults)."""

DEFAULT_COMPARED = "product,none,envoy-gradient,fifo-drop"
ENGINE = "Engine"
TRAFFIC = "Traffic"


def simulate_command(load_pools: LoadPools) -> Callable[..., None]:
    """The command, given the reader of configuration files."""

    def simulate(  # noqa: PLR0913, PLR0917 - one parameter per option
        trace: Annotated[
            Path | None,
            typer.Option(help="CSV with TIMESTAMP,ContextTokens,GeneratedTokens[,class,tenant]."),
        ] = None,
        scenario: Annotated[
            str | None, typer.Option(help="A built-in scenario by name or number; `list` lists.")
        ] = None,
        config: Annotated[Path | None, typer.Option(help="Your configuration file.")] = None,
        pool: Annotated[str | None, typer.Option(help="Which of its pools; the first.")] = None,
        replicas: Annotated[str, typer.Option(help="A number, or a range as 1..8.")] = "1",
        compare: Annotated[
            str, typer.Option(help="Policies in the report; the first is the one in question.")
        ] = DEFAULT_COMPARED,
        seed: Annotated[int, typer.Option(help="Same seed, same run.")] = 1,
        report: Annotated[Path | None, typer.Option(help="Write an HTML page here.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        speed: Annotated[float, typer.Option(help="Times faster.", rich_help_panel=TRAFFIC)] = 1.0,
        mix: Annotated[
            str, typer.Option(help="Classes, where not in the trace.", rich_help_panel=TRAFFIC)
        ] = TrafficOptions().mix,
        tenants: Annotated[
            int, typer.Option(help="Tenants, where not in the trace.", rich_help_panel=TRAFFIC)
        ] = TrafficOptions().tenants,
        retry: Annotated[
            bool, typer.Option(help="Clients retry as SDKs do.", rich_help_panel=TRAFFIC)
        ] = False,
        stream: Annotated[
            bool, typer.Option(help="Answers are streamed.", rich_help_panel=TRAFFIC)
        ] = True,
        step_ms: Annotated[
            float, typer.Option(help="Time of an empty step.", rich_help_panel=ENGINE)
        ] = EngineOptions().step_ms,
        seq_ms: Annotated[
            float, typer.Option(help="More per sequence in it.", rich_help_panel=ENGINE)
        ] = EngineOptions().seq_ms,
        prefill_tps: Annotated[
            float, typer.Option(help="Prompt tokens per second.", rich_help_panel=ENGINE)
        ] = EngineOptions().prefill_tps,
        max_num_seqs: Annotated[
            int, typer.Option(help="Sequences at once.", rich_help_panel=ENGINE)
        ] = EngineOptions().max_num_seqs,
        kv_tokens: Annotated[
            int, typer.Option(help="KV cache, tokens; 0 = no bound.", rich_help_panel=ENGINE)
        ] = 0,
        calibrate: Annotated[
            Path | None,
            typer.Option(help="CSV of batch,inter_token_s to fit.", rich_help_panel=ENGINE),
        ] = None,
        plain: Annotated[
            str, typer.Option(help="No tokens: servers:seconds.", rich_help_panel=ENGINE)
        ] = "",
    ) -> None:
        """Run the same admission core on a virtual clock: what would happen, before it does."""
        engine = EngineOptions(
            step_ms, seq_ms, prefill_tps, max_num_seqs, kv_tokens, calibrate, plain
        )
        traffic = TrafficOptions(speed, mix, tenants, retry, stream and not plain)
        with _one_line_errors():
            names = [name.strip() for name in compare.split(",") if name.strip()]
            if not names:
                raise InputError("--compare: at least one policy")
            if (trace is None) == (scenario is None):
                raise InputError("give either --trace FILE or --scenario NAME")
            ask = _Ask(names, seed, report, as_json)
            if scenario is not None:
                _scenario(scenario, ask)
            elif trace is not None:
                chosen = pool_of(load_pools(config), pool)
                world = world_of(trace, engine_of(engine), traffic, chosen)
                _trace(trace, world, replicas_of(replicas), ask)

    return simulate


def _scenario(name: str, ask: _Ask) -> None:
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
        Console().print(measures_table(item, ask.seed, compared.measures))


def _trace(trace: Path, world: World, replicas: list[int], ask: _Ask) -> None:
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
        Console().print(forecast_table(forecasts))
        Console().print(objective_lines(forecasts))


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
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """A bar on stderr, gone when done; nothing where nobody watches."""
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)
