"""`policy-server warmup`: the command. `cli` registers it with the runner of coroutines."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated

import typer

Run = Callable[[Callable[[], Coroutine[object, object, bool]]], bool]


def warmup_command(run: Run) -> Callable[..., None]:
    """The command, given what runs a coroutine to its end."""

    def warmup(
        url: Annotated[str, typer.Option("--url", help="Model server, or a whole endpoint.")],
        model: Annotated[str, typer.Option("--model", help="Name in the requests.")] = "warmup",
        sizes: Annotated[str, typer.Option("--sizes", help="Prompt tokens.")] = "16,256,1024",
        tokens: Annotated[int, typer.Option("--tokens", help="Length of the answers.")] = 8,
        rounds: Annotated[int, typer.Option("--rounds", help="At most so many.")] = 10,
        seconds: Annotated[float, typer.Option("--seconds", help="At most so long.")] = 120.0,
    ) -> None:
        """Send dummy requests until latency settles: exit code 0 when warm, 1 when not."""
        from policy_server.config_source import ConfigError
        from policy_server.load.warmup import WarmupParams, parse_sizes, warm_up

        try:
            params = WarmupParams(url, model, parse_sizes(sizes), tokens, rounds, seconds)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if not run(lambda: warm_up(params, lambda line: print(line, flush=True))):
            raise typer.Exit(1)

    return warmup
