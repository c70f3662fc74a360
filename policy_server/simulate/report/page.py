"""Puts a report together: what it is about, who fared how, and what happened over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from policy_server.simulate.record import Result
from policy_server.simulate.report.series import (
    ClassRow,
    Summary,
    engine_series,
    goodput_series,
    limit_series,
    shed_series,
    summarize,
    wait_series,
    waiting_series,
)
from policy_server.simulate.report.style import CSS
from policy_server.simulate.report.svg import Chart, Mark, Series, draw

GLOSSARY = (
    ("Policy", "Who decides whether a request goes to the model server now, waits, or is refused."),
    ("Limit", "How many requests the policy lets the model server work on at once."),
    ("In flight", "How many it is working on."),
    ("Engine queue", "Requests that the model server took but cannot start: they wait blindly."),
    ("Wait", "Time a request is held at the gateway before it is sent on. A gap: nobody went."),
    ("Refused", "Answered 429 with a time to come back, instead of waiting in vain."),
    ("Goodput", "Output tokens per second of useful answers: in time, and at a usable pace."),
    ("P0, P1, P2", "Priority classes. P0 is a person waiting, P1 a worker, P2 a batch job."),
    ("TTFT", "Time to first token: from a request's arrival to the first token of its answer."),
    ("p99", "99 of 100 requests fared better than this."),
)

Lines = Callable[[Result], list[Series]]

CHARTS: tuple[tuple[str, str, Lines], ...] = (
    ("Limit and in flight", "requests", limit_series),
    ("Goodput by class", "useful tokens per second", goodput_series),
    ("Wait at the gateway by class", "seconds, p95", wait_series),
    ("Engine queue", "requests", engine_series),
    ("Held at the gateway by class", "requests", waiting_series),
    ("Refused by class", "per second", shed_series),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One policy's run and its title."""

    title: str
    result: Result


@dataclass(frozen=True, slots=True)
class Page:
    """A report: runs of the same world; `best` is what the best static limit carries, tokens/s."""

    title: str
    explanation: str
    runs: Sequence[Shown]
    start_s: float
    end_s: float
    best: float | None = None
    marks: Sequence[Mark] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def render(pages: Sequence[Page]) -> str:
    """The whole file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(pages[0].title)}</title><style>{CSS}</style></head><body>"
        f"{''.join(_page(page) for page in pages)}</body></html>\n"
    )


def _page(page: Page) -> str:
    summaries = [summarize(run.result, page.start_s, page.end_s) for run in page.runs]
    notes = "".join(f"<p>{escape(note)}</p>" for note in page.notes)
    words = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in GLOSSARY)
    return (
        f"<h1>{escape(page.title)}</h1><p>{escape(page.explanation)}</p>{notes}"
        f"<details><summary>What the words mean</summary><dl>{words}</dl></details>"
        f"<h2>Who fared how</h2>{_span(page)}{_table(page, summaries)}"
        f"{''.join(_run(page, index, summary) for index, summary in enumerate(summaries))}"
    )


def _span(page: Page) -> str:
    return (
        f'<p class="soft">Calls that came between {page.start_s:.0f} s and {page.end_s:.0f} s. '
        "Served = got a useful answer.</p>"
    )


def _table(page: Page, summaries: Sequence[Summary]) -> str:
    seen = [row.priority for row in max(summaries, key=lambda s: len(s.classes)).classes]
    tops = "".join(f'<th class="top {p.name}" colspan="3">{p.name}</th>' for p in seen)
    subs = "<th>served</th><th>wait p99</th><th>TTFT p99</th>" * len(seen)
    head = f'<tr><th rowspan="2">Policy</th><th rowspan="2">Goodput</th>{tops}</tr><tr>{subs}</tr>'
    reference = page.best or max(s.goodput for s in summaries) or 1.0
    rows = []
    for index, (run, summary) in enumerate(zip(page.runs, summaries, strict=True)):
        cells = "".join(
            _class_cells(next((r for r in summary.classes if r.priority is p), None)) for p in seen
        )
        rows.append(
            f'<tr class="{"ours" if index == 0 else ""}"><td>{escape(run.title)}</td>'
            f"{_goodput_cell(summary.goodput, reference)}{cells}</tr>"
        )
    return f'<div class="wrap"><table>{head}{"".join(rows)}</table></div>{_basis(page)}'


def _basis(page: Page) -> str:
    if page.best is None:
        return '<p class="soft">100 % = the best of these policies.</p>'
    return (
        f'<p class="soft">100 % = {page.best:,.0f} tokens/s, what the same engine carries under '
        "the best fixed limit, found by trying them all with a constant load.</p>"
    )


def _goodput_cell(goodput: float, reference: float) -> str:
    share = goodput / reference
    return (
        f'<td><span class="bar"><i style="width:{min(100.0, 100 * share):.0f}%"></i></span>'
        f"{100 * share:.0f} %</td>"
    )


def _class_cells(row: ClassRow | None) -> str:
    if row is None:
        return "<td>—</td><td>—</td><td>—</td>"
    word = "good" if row.served >= 0.97 else "bad" if row.served < 0.5 else ""
    return (
        f'<td class="{word}">{100 * row.served:.1f} %</td>'
        f"<td>{_seconds(row.wait_p99_s)}</td><td>{_seconds(row.ttft_p99_s)}</td>"
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _run(page: Page, index: int, summary: Summary) -> str:
    run = page.runs[index]
    charts = "".join(draw(_chart(page, run, *spec)) for spec in CHARTS)
    sentence = escape(_sentence(page, summary))
    return f'<h2>{escape(run.title)}</h2><p>{sentence}</p><div class="grid2">{charts}</div>'


def _sentence(page: Page, summary: Summary) -> str:
    """The run in words."""
    if not summary.classes:
        return "Nobody called."
    share = f" ({100 * summary.goodput / page.best:.0f} % of the best)" if page.best else ""
    first = summary.classes[0]
    words = [f"{summary.goodput:,.0f} useful tokens per second{share}."]
    words.append(
        f"Of {first.calls:,} {first.priority.name} calls {100 * first.served:.1f} % served"
    )
    if first.ttft_p99_s is not None:
        words.append(f"with the first token within {_seconds(first.ttft_p99_s)} for 99 of 100")
    refused = [f"{row.priority.name} {100 * row.refused:.0f} %" for row in summary.classes]
    return f"{words[0]} {', '.join(words[1:])}. Refused for good: {', '.join(refused)}."


def _chart(page: Page, run: Shown, title: str, unit: str, lines: Lines) -> Chart:
    series = lines(run.result)
    return Chart(
        title=title,
        unit=unit,
        series=series,
        end_s=run.result.duration_s,
        top=_common_top(page, series, lines),
        marks=page.marks,
    )


def _common_top(page: Page, series: Sequence[Series], lines: Lines) -> float:
    """The first run's scale where it fits, so that charts of one kind can be compared."""
    first, own = _peak(lines(page.runs[0].result)), _peak(series)
    return first if own <= first or first == 0 else own


def _peak(series: Sequence[Series]) -> float:
    # A limit that stands idle at its maximum must not flatten what happens below it.
    busy = _highest(line for line in series if line.style != "limit")
    limit = _highest(line for line in series if line.style == "limit")
    return max(busy, min(limit, 1.6 * busy)) if busy else limit


def _highest(series: Iterable[Series]) -> float:
    return max((y for s in series for _, y in s.points if math.isfinite(y)), default=0.0)
