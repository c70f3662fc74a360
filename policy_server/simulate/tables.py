"""What the terminal shows: verdicts of scenarios and comparisons of policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from policy_server.simulate.scenarios.base import Scenario
from policy_server.simulate.suite import BarVerdict, Verdict
from policy_server.simulate.whatif import ClassForecast, Forecast, needed_replicas


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


def forecast_table(forecasts: Iterable[Forecast]) -> Table:
    """One row per class and number of replicas."""
    table = Table(title="What would happen", title_justify="left")
    for name in ("replicas", "limit", "class"):
        table.add_column(name)
    for name in ("calls", "held", "wait p50", "wait p99", "refused", "first token p99"):
        table.add_column(name, justify="right")
    table.add_column("objective")
    for item in forecasts:
        for index, row in enumerate(item.classes):
            head = (str(item.replicas), f"{item.limit:.0f}") if index == 0 else ("", "")
            table.add_row(*head, *_class_cells(row), _met(item) if index == 0 else "")
        table.add_section()
    return table


def _class_cells(row: ClassForecast) -> tuple[str, ...]:
    return (
        row.priority.name,
        str(row.calls),
        f"{100 * row.held:.1f} %",
        f"{row.wait_p50_s:.2f} s",
        f"{row.wait_p99_s:.2f} s",
        f"{100 * row.refused:.1f} %",
        f"{row.ttft_p99_s:.2f} s",
    )


def _met(item: Forecast) -> Text:
    if item.meets:
        return Text("met", style="green")
    return Text("; ".join(item.misses), style="red")


def verdict_line(forecasts: Sequence[Forecast]) -> str:
    """How many replicas the objective needs."""
    needed = needed_replicas(forecasts)
    if needed is not None:
        return f"{needed} replica{'s' if needed > 1 else ''} meet the objective."
    return f"{forecasts[-1].replicas} replicas are not enough; try more with --replicas."


def forecast_json(forecasts: Sequence[Forecast]) -> dict[str, object]:
    """The same as data."""
    return {
        "needed_replicas": needed_replicas(forecasts),
        "forecasts": [
            {
                "replicas": item.replicas,
                "limit": item.limit,
                "meets": item.meets,
                "misses": list(item.misses),
                "classes": [
                    {
                        "class": row.priority.name,
                        "calls": row.calls,
                        "held": row.held,
                        "wait_p50_s": row.wait_p50_s,
                        "wait_p99_s": row.wait_p99_s,
                        "refused": row.refused,
                        "ttft_p99_s": row.ttft_p99_s,
                    }
                    for row in item.classes
                ],
            }
            for item in forecasts
        ],
    }
