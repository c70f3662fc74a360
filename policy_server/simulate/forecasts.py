"""What the terminal shows of a user's own traffic: one row per class and number of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from policy_server.simulate.whatif import ClassForecast, Forecast, needed_replicas


def forecast_table(forecasts: Iterable[Forecast]) -> Table:
    """One row per class and number of replicas."""
    table = Table(title="What would happen", title_justify="left")
    for name in ("repl.", "limit", "class"):
        table.add_column(name)
    for name in ("calls", "held", "p50 wait", "p99 wait", "refused", "p99 TTFT"):
        table.add_column(name, justify="right")
    for item in forecasts:
        for index, row in enumerate(item.classes):
            head = (str(item.replicas), f"{item.limit:.0f}") if index == 0 else ("", "")
            table.add_row(*head, *_class_cells(row))
        table.add_section()
    return table


def _class_cells(row: ClassForecast) -> tuple[str, ...]:
    return (
        row.priority.name,
        str(row.calls),
        f"{100 * row.held:.1f} %",
        f"{row.wait_p50_s:.1f} s",
        f"{row.wait_p99_s:.1f} s",
        f"{100 * row.refused:.1f} %",
        f"{row.ttft_p99_s:.1f} s",
    )


def objective_lines(forecasts: Sequence[Forecast]) -> Text:
    """What each number of replicas misses, and how many the objective needs."""
    text = Text()
    for item in forecasts:
        words = "meets the objective" if item.meets else f"misses it: {'; '.join(item.misses)}"
        text.append(f"{item.replicas:>3} × ")
        text.append(words, style="green" if item.meets else "red")
        text.append("\n")
    return text.append(_verdict(forecasts))


def _verdict(forecasts: Sequence[Forecast]) -> str:
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
