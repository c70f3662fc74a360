"""`policy-server warmup`: the command; `cli` registers it."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

from typing import Annotated

import typer

from policy_server.commands import header_lines, run, usage


def warmup(  # noqa: PLR0913, PLR0917 - one parameter per option
    url: Annotated[str, typer.Option("--url", help="Model server, or a whole endpoint.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Name in the requests; else the first it lists.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME: VALUE to send; may be repeated.")
    ] = None,
    sizes: Annotated[str, typer.Option("--sizes", help="Prompt tokens.")] = "16,256,1024",
    tokens: Annotated[int, typer.Option("--tokens", help="Length of the answers.")] = 8,
    rounds: Annotated[int, typer.Option("--rounds", help="At most so many.")] = 10,
    seconds: Annotated[float, typer.Option("--seconds", help="At most so long.")] = 120.0,
) -> None:
    """Send dummy requests until latency settles: exit code 0 when warm, 1 when not."""
    from policy_server.load.warmup import warm_up
    from policy_server.load.warmup_params import WarmupParams, parse_sizes

    with usage():
        params = WarmupParams(
            url=url,
            model=model,
            headers=header_lines(header or []),
            sizes=parse_sizes(sizes),
            max_tokens=tokens,
            max_rounds=rounds,
            max_s=seconds,
        )
    if not run(warm_up(params, lambda line: print(line, flush=True))):
        raise typer.Exit(1)
