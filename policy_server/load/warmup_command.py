"""`policy-server warmup`: the command; `cli` registers it."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

from typing import Annotated

import typer

from policy_server.commands import run, usage


def warmup(
    url: Annotated[str, typer.Option("--url", help="Model server, or a whole endpoint.")],
    model: Annotated[str, typer.Option("--model", help="Name in the requests.")] = "warmup",
    sizes: Annotated[str, typer.Option("--sizes", help="Prompt tokens.")] = "16,256,1024",
    tokens: Annotated[int, typer.Option("--tokens", help="Length of the answers.")] = 8,
    rounds: Annotated[int, typer.Option("--rounds", help="At most so many.")] = 10,
    seconds: Annotated[float, typer.Option("--seconds", help="At most so long.")] = 120.0,
) -> None:
    """Send dummy requests until latency settles: exit code 0 when warm, 1 when not."""
    from policy_server.load.warmup import WarmupParams, parse_sizes, warm_up

    with usage():
        params = WarmupParams(url, model, parse_sizes(sizes), tokens, rounds, seconds)
    if not run(warm_up(params, lambda line: print(line, flush=True))):
        raise typer.Exit(1)
