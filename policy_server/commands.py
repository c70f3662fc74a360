"""What the commands share: how they run, how they refuse wrong usage, how wide their tables are."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

import re
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
PIPE_WIDTH = 140
"""Columns of a table that goes into a file or a pipe."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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


def header_lines(lines: Iterable[str]) -> dict[str, str]:
    """`NAME: VALUE` each, names in lower case. The ValueError names no value: it may be a key."""
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name.strip()) or not value.strip().isprintable():
            raise ValueError(f"--header number {number} is no header; write NAME: VALUE")
        found[name.strip().lower()] = value.strip()
    return found


def console() -> Console:
    """Stdout for tables: as wide as the terminal. What stands in them comes from anybody, so
    nothing in it is markup or a name of an emoji."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, markup=False, emoji=False)
