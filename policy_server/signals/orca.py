"""Load reports in response headers (ORCA), as vLLM and Triton write them.

    endpoint-load-metrics: JSON {"named_metrics": {"kv_cache_usage_perc": 0.4}}
    endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, cpu_utilization=0.3

The binary form is not read: the gate asks for JSON. A report that cannot be read is no report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from policy_server.core.samples import LoadReport

HEADER = "endpoint-load-metrics"
MAX_REPORT_BYTES = 16 * 1024

_WAITING = ("num_requests_waiting",)
_RUNNING = ("num_requests_running",)
_KV_USED = ("kv_cache_usage_perc", "kv_cache_utilization", "gpu_cache_usage_perc")
_PREEMPTIONS = ("num_preemptions_total", "num_preemptions")


def read_report(headers: Mapping[str, str]) -> LoadReport | None:
    """The report in these response headers (names in lower case), None when there is none."""
    value = headers.get(HEADER)
    if not value or len(value) > MAX_REPORT_BYTES:
        return None
    form, _, text = value.strip().partition(" ")
    if form.upper() == "JSON":
        return report_of(_from_json(text))
    return report_of(_from_text(text)) if form.upper() == "TEXT" else None


def report_of(metrics: Mapping[str, float]) -> LoadReport | None:
    """The known ones among named metrics; None when none is known."""
    report = LoadReport(
        waiting=_first(metrics, _WAITING),
        running=_first(metrics, _RUNNING),
        kv_used=_first(metrics, _KV_USED),
        preemptions_total=_first(metrics, _PREEMPTIONS),
    )
    return report if report != LoadReport() else None


def _first(metrics: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _from_json(text: str) -> dict[str, float]:
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(report, dict):
        return {}
    named = report.get("named_metrics", {})
    pairs = {**report, **named} if isinstance(named, dict) else report
    return _numbers(pairs.items())


def _from_text(text: str) -> dict[str, float]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return _numbers(
        (name.strip().removeprefix("named_metrics."), value) for name, _, value in pairs
    )


def _numbers(pairs: Iterable[tuple[str, object]]) -> dict[str, float]:
    """The values that are finite and not negative; the others were never meant."""
    numbers: dict[str, float] = {}
    for name, value in pairs:
        try:
            number = float(value) if isinstance(value, int | float | str) else math.nan
        except (ValueError, OverflowError):
            continue
        if math.isfinite(number) and number >= 0:
            numbers[name] = number
    return numbers
