"""`policy-server top`: the command. `cli` registers it with the runner of coroutines."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

Run = Callable[[Callable[[], Coroutine[object, object, None]]], None]
PIPE_WIDTH = 140


def top_command(run: Run) -> Callable[..., None]:
    """The command, given what runs a coroutine to its end."""

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
        from rich.console import Console

        from policy_server.top.live import run_top
        from policy_server.top.source import check_url, read_token

        check_url(url)
        token = read_token(token_file)
        console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
        with suppress(KeyboardInterrupt):  # how one leaves it
            run(lambda: run_top(url, token, console, once or not console.is_terminal))

    return top
