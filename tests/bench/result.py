"""What a bench says: rows for a table, bars that must hold, and everything as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must be true; `found` and `wanted` are for people."""

    name: str
    found: str
    wanted: str
    holds: bool

    @classmethod
    def at_least(cls, name: str, value: float | None, wanted: float) -> Bar:
        """`value` ≥ `wanted`; a figure that could not be measured misses the bar."""
        return cls(name, shown(value), f">= {wanted:g}", value is not None and value >= wanted)

    @classmethod
    def at_most(cls, name: str, value: float | None, wanted: float) -> Bar:
        """`value` ≤ `wanted`; a figure that could not be measured misses the bar."""
        return cls(name, shown(value), f"<= {wanted:g}", value is not None and value <= wanted)

    @classmethod
    def equal(cls, name: str, value: object, wanted: object) -> Bar:
        """`value` is exactly `wanted`."""
        return cls(name, str(value), f"= {wanted}", value == wanted)


@dataclass(slots=True)
class Part:
    """One bench. `bars` decide the exit code; `notes` are lines under the table."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, object] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every bar holds."""
        return all(bar.holds for bar in self.bars)

    def as_json(self) -> Mapping[str, object]:
        """Everything, the raw figures included."""
        return {
            "name": self.name,
            "holds": self.holds,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "bars": [
                {"name": b.name, "found": b.found, "wanted": b.wanted, "holds": b.holds}
                for b in self.bars
            ],
            "notes": self.notes,
            "data": self.data,
        }


def shown(value: Cell) -> str:
    """A cell for people: three significant digits of a fraction, whole numbers whole."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def print_part(console: Console, part: Part) -> None:
    """The table, the bars and the notes of one bench."""
    table = Table(title=part.title, title_justify="left")
    for index, name in enumerate(part.columns):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in part.rows:
        table.add_row(*(shown(cell) for cell in row))
    console.print(table)
    for bar in part.bars:
        mark = "[green]holds[/]" if bar.holds else "[red]MISSED[/]"
        console.print(f"  {mark}  {bar.name}: {bar.found} ({bar.wanted})", highlight=False)
    for note in part.notes:
        console.print(f"  {note}", highlight=False)
