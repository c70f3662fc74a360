"""`policy-server simulate`: a trace or a scenario in virtual time, as a table, JSON and a page.

`cli` registers it with the function that reads a configuration file, because this package knows
the core only:  app.command("simulate")(simulate_command(load_pools))
"""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policy_server.simulate.asked import Ask, EngineOptions, TrafficOptions
from policy_server.simulate.errors import InputError

if TYPE_CHECKING:
    from policy_server.core.params import PoolParams

LoadPools = Callable[[Path | None], "Sequence[PoolParams]"]
"""Reads a configuration file (None = the defaults)."""

DEFAULT_COMPARED = "product,none,envoy-gradient,fifo-drop"
OF_ALL = {"scenario", "compare", "seed", "report", "as_json"}
"""Parameters that count for a scenario as well."""
ENGINE = "Engine"
TRAFFIC = "Traffic"


def simulate_command(load_pools: LoadPools) -> Callable[..., None]:
    """The command, given the reader of configuration files."""

    def simulate(  # noqa: PLR0913, PLR0917 - one parameter per option
        given: typer.Context,
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
        from policy_server.simulate.options import engine_of, pool_of, replicas_of, world_of
        from policy_server.simulate.perform import perform_scenario, perform_trace

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
            ask = Ask(names, seed, report, as_json)
            if scenario is not None:
                _no_more_than_a_scenario_takes(given)
                perform_scenario(scenario, ask)
            elif trace is not None:
                chosen = pool_of(load_pools(config), pool)
                world = world_of(trace, engine_of(engine), traffic, chosen)
                perform_trace(trace, world, replicas_of(replicas), ask)

    return simulate


def _no_more_than_a_scenario_takes(given: typer.Context) -> None:
    """A scenario brings its own configuration, traffic and engine; what is typed must count."""
    for parameter in given.command.params:
        source = given.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in OF_ALL:
            raise InputError(f"{parameter.opts[0]} goes with --trace; a scenario brings its own")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Mistakes are said, and coded, as by every other command."""
    from policy_server.config import ConfigError

    try:
        yield
    except InputError as error:
        raise ConfigError(str(error)) from error
