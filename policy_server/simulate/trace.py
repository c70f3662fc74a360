"""Traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, as the Azure public data set has them.

A timestamp is either ISO-like (`2023-11-16 18:17:03.9799600`) or seconds. Optional columns
`class` (0, 1, 2 or P0, P1, P2) and `tenant` are used when present; else both come from a seeded
hash of the row, so that every policy and every run sees the same requests in the same class.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from policy_server.core.request import Priority
from policy_server.simulate.errors import InputError
from policy_server.simulate.seeds import pick

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_SPAN_S = 31 * 86_400.0
"""Virtual time passes even where nothing arrives; without a bound a run may never end."""
SPAN = "more than 31 days after the first; is TIMESTAMP in seconds? Else cut the trace"
_FRACTION = re.compile(r"([^.]+)\.([0-9]+)(Z|[+-][0-9:]+)?")
DEFAULT_MIX = {Priority.P0: 0.2, Priority.P1: 0.5, Priority.P2: 0.3}


class _Reader(Protocol):
    """What csv.reader returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request: seconds from the start of the trace, token counts, given class and tenant."""

    at: float
    prompt: int
    output: int
    priority: Priority | None = None
    tenant: str | None = None


def read_trace(path: Path) -> list[TraceRow]:
    """The rows in order. Raises InputError naming line and reason."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a BOM
            rows = list(_rows(path, csv.reader(file)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise InputError(f"{path}: no requests in it")
    return rows


def _rows(path: Path, reader: _Reader) -> Iterator[TraceRow]:
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(
            f"{path}:1: missing column {', '.join(missing)}; the header must name "
            f"{','.join(COLUMNS)}"
        )
    start = previous = None
    for cells in reader:
        line = reader.line_num
        if not cells:
            continue
        try:
            row = _row(dict(zip(header, cells, strict=False)))
        except ValueError as error:
            raise InputError(f"{path}:{line}: {error}") from None
        start = row.at if start is None else start
        if previous is not None and row.at < previous:
            raise InputError(f"{path}:{line}: earlier than the line before; sort the trace by time")
        if row.at - start > MAX_SPAN_S:
            raise InputError(f"{path}:{line}: {SPAN}")
        previous = row.at
        yield TraceRow(row.at - start, row.prompt, row.output, row.priority, row.tenant)


def _row(cells: Mapping[str, str]) -> TraceRow:
    for name in COLUMNS:
        if name not in cells:
            raise ValueError(f"no value for {name}")
    at = _seconds(cells["TIMESTAMP"].strip())
    prompt = _tokens("ContextTokens", cells["ContextTokens"])
    output = _tokens("GeneratedTokens", cells["GeneratedTokens"])
    given, tenant = cells.get("class", "").strip().upper(), cells.get("tenant", "").strip()
    return TraceRow(at, prompt, output, _priority(given) if given else None, tenant or None)


def _priority(text: str) -> Priority:
    name = text if text.startswith("P") else f"P{text}"
    if name not in Priority.__members__:
        raise ValueError(f"class {text!r} is none of 0, 1, 2, P0, P1, P2")
    return Priority[name]


def _tokens(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a whole number") from None
    if value < 0:
        raise ValueError(f"{name} {value} is negative")
    return max(1, value)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return _moment(text)
    if not math.isfinite(value):
        raise ValueError(f"TIMESTAMP {text!r} is not a time")
    return value


def _moment(text: str) -> float:
    # Seven digits of fraction are one too many for fromisoformat: they are read apart.
    parts = _FRACTION.fullmatch(text)
    whole, fraction = (parts[1] + (parts[3] or ""), parts[2]) if parts else (text, "0")
    try:
        moment = datetime.fromisoformat(whole)
    except ValueError:
        raise ValueError(f"TIMESTAMP {text!r} is not a time") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() + float(f"0.{fraction}")


def classify(
    rows: Sequence[TraceRow], seed: int, mix: Mapping[Priority, float], tenants: int
) -> Iterator[tuple[TraceRow, Priority, str]]:
    """Each row with its class and tenant; what the trace does not say comes from a seeded hash."""
    classes, names = list(mix.items()), [(f"t{n}", 1.0) for n in range(tenants)]
    for index, row in enumerate(rows):
        priority = row.priority
        if priority is None:
            priority = pick(f"{seed}:class:{index}", classes)
        yield row, priority, row.tenant or pick(f"{seed}:tenant:{index}", names)
