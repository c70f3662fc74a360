"""`policy-server journal ls|verify|stats|salvage`: what the journal holds, and whether it is sound.

Reads only, and a server may be running on the same file; `salvage` makes a new one.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from policy_server.config import Config
from policy_server.journal.boot import this_boot
from policy_server.journal.port import JournalError
from policy_server.journal.restore import Moment, revive
from policy_server.journal.sqlite import inspect
from policy_server.journal.sqlite.salvage import salvage


def run_journal(action: str, config: Config, data_dir: Path, console: Console) -> int:
    """The exit code: 0, or 1 when something is wrong with the journal."""
    path = config.journal.file_in(data_dir)
    if action == "verify":
        return _verify(path, console)
    act = {"ls": _list, "stats": _stats, "salvage": _salvage}[action]
    try:
        act(path, console)
    except JournalError as error:
        console.print(str(error), soft_wrap=True, markup=False)
        return 1
    except OSError as error:
        console.print(f"{error.filename or path}: {error.strerror}", soft_wrap=True, markup=False)
        return 1
    return 0


def _verify(path: Path, console: Console) -> int:
    found = inspect.findings(path)
    for line in found or [f"{path}: sound"]:
        console.print(line, soft_wrap=True, markup=False)
    return 1 if found else 0


def _salvage(path: Path, console: Console) -> None:
    found = salvage(path)
    table = Table("what", "saved", "lost, at most")
    for name, rows in found.rows.items():
        if name != "migrations":
            table.add_row(name, str(rows), str(found.lost.get(name, 0)))
    console.print(table)
    said = f"{path} is new; the damaged one is {found.damaged}, keep it. Now start the server."
    console.print(said, soft_wrap=True, markup=False)


def _list(path: Path, console: Console) -> None:
    now = time.monotonic()
    alive, dead = revive(inspect.places(path), Moment(now, time.time(), this_boot()))
    table = Table()
    for name in ("class", "tenant", "pool", "waited s", "left s", "uid", "x-request-id"):
        table.add_column(name, overflow="fold")  # half an id is of no use
    for place in alive:
        request = place.request
        waited, left = f"{now - request.arrived:.1f}", f"{request.deadline - now:.1f}"
        names = request.priority.name, request.tenant, request.pool
        table.add_row(*names, waited, left, request.uid, place.context.request_id)
    console.print(table)
    console.print(f"{len(alive)} wait, {len(dead)} places are past their time")


def _stats(path: Path, console: Console) -> None:
    found = inspect.summary(path)
    table = Table("what", "value")
    table.add_row("file", str(path))
    table.add_row("schema", str(found.schema))
    for name, count in found.rows.items():
        table.add_row(name, str(count))
    for name, size in (
        ("bytes", found.file_bytes),
        ("bytes of the log", found.log_bytes),
        ("bytes free inside", found.free_bytes),
    ):
        table.add_row(name, str(size))
    console.print(table)
