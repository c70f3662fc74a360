"""The report as tables for a terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from policy_server.load.attempt import End
from policy_server.load.results import LoadReport, Quantiles, Summary, Window

_FAILED = (End.SERVER_ERROR, End.OTHER_STATUS, End.INCOMPLETE, End.ERROR, End.UNFINISHED)


def render(report: LoadReport) -> Group:
    """Tables: the classes in the measured window, refusals by reason, what went wrong."""
    parts = [_classes(report)]
    if report.refusals:
        parts.append(_refusals(report))
    if report.errors:
        parts.append(_errors(report))
    return Group(*parts)


def _classes(report: LoadReport) -> Table:
    window = report.measured
    table = Table(title=_title(report, window), title_justify="left")
    table.add_column("class")
    for name in ("sent", "served", "served %", "429", "failed", "tries", "TTFT p50", "p90", "p99"):
        table.add_column(name, justify="right")
    for name in ("e2e p50", "p99", "held ms p50", "p99"):
        table.add_column(name, justify="right")
    for name, summary in window.classes.items():
        table.add_row(name, *_cells(summary))
    if len(window.classes) > 1:
        table.add_section()
        table.add_row("all", *_cells(window.total))
    return table


def _title(report: LoadReport, window: Window) -> str:
    return (
        f"{report.params.url}  {window.begin_s:g}-{window.end_s:g} s  "
        f"offered {report.offered_rps:.1f}/s  goodput {window.goodput_rps:.1f}/s, "
        f"{window.goodput_tps:.0f} tokens/s  (times in seconds)"
    )


def _cells(summary: Summary) -> list[str]:
    ends = summary.ends
    held = summary.queue_wait_ms
    return [
        str(summary.sent),
        str(ends[End.SERVED.value]),
        f"{100 * summary.served_share:.1f}",
        str(ends[End.SHED.value]),
        str(sum(ends[end.value] for end in _FAILED)),
        str(summary.attempts),
        *_seconds(summary.ttft_s, with_p90=True),
        *_seconds(summary.e2e_s, with_p90=False),
        *("-" if value is None else f"{value:.0f}" for value in (held.p50, held.p99)),
    ]


def _seconds(quantiles: Quantiles, with_p90: bool) -> list[str]:
    middle = (quantiles.p90,) if with_p90 else ()
    values = (quantiles.p50, *middle, quantiles.p99)
    return ["-" if value is None else f"{value:.3f}" for value in values]


def _refusals(report: LoadReport) -> Table:
    title = f"refused attempts: {report.refused_attempts}, malformed: {report.malformed}"
    table = Table(title=title, title_justify="left")
    table.add_column("class")
    table.add_column("reason")
    table.add_column("attempts", justify="right")
    for name, reasons in report.refusals.items():
        for reason, count in sorted(reasons.items()):
            table.add_row(name, reason, str(count))
    for example in report.malformed_examples:
        table.add_row("", f"malformed: {example}", "")
    return table


def _errors(report: LoadReport) -> Table:
    table = Table(title="errors", title_justify="left")
    table.add_column("what")
    table.add_column("attempts", justify="right")
    for what, count in report.errors.items():
        table.add_row(what, str(count))
    return table
