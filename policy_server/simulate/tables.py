"""What the terminal shows of scenarios: verdicts, and measures of several policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from policy_server.simulate.scenarios.base import Scenario
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


def measures_table(item: Scenario, seed: int, measures: Mapping[str, Mapping[str, float]]) -> Table:
    """A scenario's measures, one column per policy, coloured by its bars."""
    table = Table(title=f"{item.number} {item.title} (seed {seed})", title_justify="left")
    table.add_column("measure")
    table.add_column("bar", justify="right")
    for name in measures:
        table.add_column(name, justify="right")
    bars = {bar.measure: bar for bar in item.bars}
    for measure in next(iter(measures.values())):
        bar = bars.get(measure)
        cells = []
        for of_policy in measures.values():
            value = of_policy[measure]
            style = "" if bar is None else "green" if bar.holds(value) else "red"
            cells.append(Text(f"{value:.3g}", style=style))
        sign = "" if bar is None else f"{'≥' if bar.at_least else '≤'} {bar.value:g}"
        table.add_row(measure, sign, *cells)
    return table


def scenario_json(
    item: Scenario, seed: int, measures: Mapping[str, Mapping[str, float]]
) -> dict[str, object]:
    """The same as data."""
    bars = {str(bar): bar for bar in item.bars}
    return {
        "scenario": item.name,
        "seed": seed,
        "measures": {name: dict(values) for name, values in measures.items()},
        "holds": {
            name: {text: bar.holds(values[bar.measure]) for text, bar in bars.items()}
            for name, values in measures.items()
        },
    }
