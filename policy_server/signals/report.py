"""From named figures to a load report: which names are known, which values are believed.

A report is somebody's word. A figure that cannot be true (NaN, negative, more requests than a
server can hold, a cache fuller than full) is left out, the others still count; with none left
there is no report. Nothing here ever makes an engine look full that did not say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from policy_server.core.samples import LoadReport

MAX_REQUESTS = 1e6  # at one engine; more is a broken counter
MAX_TOTAL = 1e15  # of a counter since the start, still exact in a double

WAITING = ("num_requests_waiting", "num_queue_reqs", "queue_size", "requests_deferred")
RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing")
KV_USED = (
    "kv_cache_usage_perc",
    "kv_cache_utilization",
    "gpu_cache_usage_perc",
    "token_usage",
)
PREEMPTIONS = ("num_preemptions_total", "num_preemptions")

ASKED_SEATS = ("x-aqueduct-max-concurrent", "x-aquifer-max-concurrent")
ASKED_RPS = ("x-aqueduct-rps", "x-aquifer-rps")
MAX_ASK_CHARS = 256


def report_of(figures: Mapping[str, float]) -> LoadReport:
    """The known and believable ones among named figures; an empty report when there are none."""
    return LoadReport(
        waiting=_first(figures, WAITING, MAX_REQUESTS),
        running=_first(figures, RUNNING, MAX_REQUESTS),
        kv_used=_first(figures, KV_USED, 1.0),
        preemptions_total=_first(figures, PREEMPTIONS, MAX_TOTAL),
    )


def with_asks(report: LoadReport, headers: Mapping[str, str]) -> LoadReport:
    """The report with what the response headers (names in lower case) ask for."""
    seats, rps = _asked(headers, ASKED_SEATS), _asked(headers, ASKED_RPS)
    if seats is None and rps is None:
        return report
    return replace(report, asked_seats=seats, asked_rps=rps)


def figure(text: str) -> float | None:
    """The number that a header or a page shows; None when it shows none."""
    try:
        return float(text)
    except ValueError:
        return None


def believable(value: float, most: float) -> bool:
    """Whether a figure can be true; NaN and the infinite never are."""
    return 0.0 <= value <= most


def _first(figures: Mapping[str, float], names: Iterable[str], most: float) -> float | None:
    found = (figures[name] for name in names if name in figures)
    return next((value for value in found if believable(value, most)), None)


def _asked(headers: Mapping[str, str], names: Iterable[str]) -> float | None:
    """What is asked for, `name` before its alias; several values (a repeated header): the least."""
    for name in names:
        values = [figure(part) for part in headers.get(name, "")[:MAX_ASK_CHARS].split(",")]
        known = [v for v in values if v is not None and believable(v, MAX_REQUESTS)]
        if known:
            return min(known)
    return None
