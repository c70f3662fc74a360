"""What the terminal shows: verdicts of scenarios and comparisons of policies."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from policy_server.simulate.suite import BarVerdict, Verdict


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    """One row per bar."""
    table = Table(title="Scenarios", title_justify="left", show_lines=False)
    for name in ("#", "scenario", "bar"):
        table.add_column(name, overflow="fold")
    table.add_column("worst", justify="right")
    table.add_column("seed", justify="right")
    table.add_column("verdict", no_wrap=True)
    table.add_column("controls that miss it", overflow="fold")
    for verdict in verdicts:
        for index, bar in enumerate(verdict.bars):
            first = (str(verdict.scenario.number), verdict.scenario.name)
            table.add_row(
                *(first if index == 0 else ("", "")),
                str(bar.bar),
                f"{bar.worst:.3g}",
                str(bar.seed),
                _word(bar),
                ", ".join(bar.missed_by_controls) or "—",
            )
        table.add_section()
    return table


def _word(bar: BarVerdict) -> Text:
    if bar.holds:
        return Text("holds", style="green")
    return Text(f"misses by {bar.bar.missed_by(bar.worst):.3g}", style="red")


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """The same as data."""
    return {
        "number": verdict.scenario.number,
        "name": verdict.scenario.name,
        "title": verdict.scenario.title,
        "holds": verdict.holds,
        "bars": [
            {
                "bar": str(bar.bar),
                "worst": bar.worst,
                "seed": bar.seed,
                "holds": bar.holds,
                "missed_by": bar.bar.missed_by(bar.worst),
                "controls": list(bar.missed_by_controls),
            }
            for bar in verdict.bars
        ],
        "controls_that_prove_nothing": list(verdict.idle_controls),
        "errors": list(verdict.errors),
    }
