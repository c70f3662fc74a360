"""What the commands share: how they run, how they refuse wrong usage, how wide their tables are."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
PIPE_WIDTH = 140
"""Columns of a table that goes into a file or a pipe."""


def run(main: Coroutine[object, object, T]) -> T:
    """The coroutine to its end, on uvloop where there is one."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


@contextmanager
def usage() -> Iterator[None]:
    """What the parameters of a command refuse is wrong usage."""
    from policy_server.config_source import ConfigError

    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def reason(error: OSError) -> str:
    """Why nobody could be reached, in the system's words."""
    import os
    import socket

    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def console() -> Console:
    """Stdout for tables: as wide as the terminal. What stands in them comes from anybody, so
    nothing in it is markup or a name of an emoji."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, markup=False, emoji=False)
