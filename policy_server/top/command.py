"""`policy-server top`: the command; `cli` registers it."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from policy_server.commands import console, run


def top(
    url: Annotated[
        str, typer.Option("--url", help="HTTP port of the policy server.")
    ] = "http://127.0.0.1:9003",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with its admin token.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
) -> None:
    """Watch a running policy server in the terminal. Ctrl-C ends it."""
    from policy_server.top.live import run_top
    from policy_server.top.source import check_url, read_token

    check_url(url)
    token = read_token(token_file)
    screen = console()
    with suppress(KeyboardInterrupt):  # how one leaves it
        run(run_top(url, token, screen, once or not screen.is_terminal))
