"""Load reports in response headers (ORCA), as vLLM, Triton and others write them.

    endpoint-load-metrics: JSON {"named_metrics": {"kv_cache_usage_perc": 0.4}}
    endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, cpu_utilization=0.3
    endpoint-load-metrics: BIN <base64 of an OrcaLoadReport>
    endpoint-load-metrics-bin: <the same>

The gate asks for JSON; the other forms come from back ends that send what they like. Beside them
stand the headers by which a back end asks for less (`x-aqueduct-rps`, `x-aqueduct-max-concurrent`,
and the same under `x-aquifer-`). A report that is there and cannot be read is an empty one, so
that it can be counted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping

from policy_server.core.samples import LoadReport
from policy_server.signals.orca_binary import named_figures
from policy_server.signals.report import (
    ASKED_RPS,
    ASKED_SEATS,
    figure,
    report_of,
    with_asks,
)

HEADER = "endpoint-load-metrics"
BINARY_HEADER = "endpoint-load-metrics-bin"
MAX_REPORT_BYTES = 16 * 1024
PREFIXES = ("named_metrics.", "utilization.")

_HEADERS = (HEADER, BINARY_HEADER, *ASKED_SEATS, *ASKED_RPS)


def read_report(headers: Mapping[str, str]) -> LoadReport | None:
    """What these response headers (names in lower case) say; None when they say nothing."""
    if not any(name in headers for name in _HEADERS):
        return None
    return with_asks(report_of(_figures(headers)), headers)


def _figures(headers: Mapping[str, str]) -> dict[str, float]:
    value = headers.get(HEADER, "").strip()
    binary = headers.get(BINARY_HEADER, "").strip()
    if max(len(value), len(binary)) > MAX_REPORT_BYTES:
        return {}
    form, _, text = value.partition(" ")
    read = {"JSON": _from_json, "TEXT": _from_text, "BIN": _from_binary}.get(form.upper())
    figures = read(text) if read is not None else {}
    return {**_from_binary(binary), **figures} if binary else figures


def _from_json(text: str) -> dict[str, float]:
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(report, dict):
        return {}
    found = _numbers(report.items())
    for key in ("utilization", "named_metrics", "namedMetrics"):
        named = report.get(key)
        if isinstance(named, dict):
            found.update(_numbers(named.items()))
    return found


def _from_text(text: str) -> dict[str, float]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return _numbers((_bare(name.strip()), value) for name, _, value in pairs)


def _from_binary(text: str) -> dict[str, float]:
    try:
        padded = text + "=" * (-len(text) % 4)  # gRPC's own writers leave the padding out
        return named_figures(base64.b64decode(padded, validate=True))
    except ValueError:
        return {}


def _bare(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _numbers(pairs: Iterable[tuple[object, object]]) -> dict[str, float]:
    """The pairs whose value is a number, or a text that shows one."""
    numbers: dict[str, float] = {}
    for name, value in pairs:
        if isinstance(value, str):
            number = figure(value)
        elif isinstance(value, float):
            number = value
        else:  # an int may be too large for a float, a bool is none
            number = figure(str(value)) if type(value) is int and abs(value) < 1 << 64 else None
        if number is not None:
            numbers[str(name)] = number
    return numbers
