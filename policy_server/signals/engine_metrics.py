"""An engine's own Prometheus page → a load report.

    engine     waiting                      running                 KV cache
    vLLM       vllm:num_requests_waiting    vllm:num_requests_running   vllm:kv_cache_usage_perc,
                                                              before: vllm:gpu_cache_usage_perc
    SGLang     sglang:num_queue_reqs        sglang:num_running_reqs     sglang:token_usage
    TGI        tgi_queue_size               tgi_batch_current_size      –
    Triton     nv_inference_pending_request_count   –                   –
    llama.cpp  llamacpp:requests_deferred   llamacpp:requests_processing    –

and vLLM's `vllm:num_preemptions_total`. One page may carry many series of a name (models, engines
of a data-parallel group): counts are summed, of the caches the fullest counts. The ranks of a
tensor-parallel group all tell the same, so only rank 0 is read. A series with a value that cannot
be true spoils its figure, not the page: half a sum would be a lie as well.

Only lines that begin with a known name are looked at; the rest of a page costs a search.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice

from policy_server.core.samples import LoadReport
from policy_server.signals.report import MAX_REQUESTS, MAX_TOTAL, believable, figure

MAX_PAGE_BYTES = 1024 * 1024
"""A page of vLLM is about 50 KB; reading this much takes some milliseconds of the loop."""
MAX_SERIES = 1000  # of known names; a data-parallel group of a hundred engines has 600
MAX_AGE_S = 4.0
"""Lines may carry the time at which they were true (federation does that)."""

WAITING = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "tgi_queue_size",
    "nv_inference_pending_request_count",
    "llamacpp:requests_deferred",
)
RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "tgi_batch_current_size",
    "llamacpp:requests_processing",
)
KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
PREEMPTIONS = ("vllm:num_preemptions_total",)

_NAMES = (*WAITING, *RUNNING, *KV_USED, *PREEMPTIONS)
_LINE = re.compile(
    rf"^(?:{'|'.join(map(re.escape, _NAMES))})(?=[ \t{{])[^\n]{{1,2000}}$", re.MULTILINE
)
_SERIES = re.compile(  # possessive throughout: nothing is ever tried twice
    r"([a-z_:]++)[ \t]*+(\{(?:[^\"{}]|\"(?:[^\"\\]|\\.)*+\")*+\})?+"
    r"[ \t]*+([^\s#{]++)(?:[ \t]++(-?[0-9.]++))?+[ \t\r]*+(?:#.*)?"
)
_OTHER_RANK = re.compile(r"\b(?:tp|pp)_rank=\"(?!0\")")


def read_page(page: bytes, now_unix_s: float) -> LoadReport:
    """What a page of metrics says; an empty report when it says nothing that is known.

    A report in which every known line is older than MAX_AGE_S carries that age.
    """
    series: dict[str, list[float]] = {}
    ages: list[float] = []  # of the lines
    for name, value, written_unix_s in _series(page.decode("utf-8", "replace")):
        series.setdefault(name, []).append(value)
        ages.append(0.0 if written_unix_s is None else now_unix_s - written_unix_s)
    age_s = min(ages, default=0.0)
    return LoadReport(
        waiting=_sum(series, WAITING, MAX_REQUESTS),
        running=_sum(series, RUNNING, MAX_REQUESTS),
        kv_used=_fullest(series),
        preemptions_total=_sum(series, PREEMPTIONS, MAX_TOTAL),
        age_s=age_s if age_s >= MAX_AGE_S else 0.0,
        scraped=True,
    )


def _series(page: str) -> Iterator[tuple[str, float, float | None]]:
    """(name, value, Unix time of writing in seconds) of the known lines; NaN = no number there."""
    lines = list(islice(_LINE.finditer(page), MAX_SERIES + 1))
    if len(lines) > MAX_SERIES:
        return
    for line in lines:
        found = _SERIES.fullmatch(line[0])
        if found is None:
            continue
        name, labels, text, written_ms = found.groups()
        if labels and _OTHER_RANK.search(labels):
            continue
        value = figure(text)
        written = figure(written_ms) if written_ms else None
        yield (
            name,
            math.nan if value is None else value,
            None if written is None else written / 1000.0,
        )


def _sum(series: dict[str, list[float]], names: tuple[str, ...], most: float) -> float | None:
    values = [value for name in names for value in series.get(name, ())]
    if not values or not all(believable(value, most) for value in values):
        return None
    total = sum(values)
    return total if believable(total, most) else None


def _fullest(series: dict[str, list[float]]) -> float | None:
    """Of the first name that is there: vLLM showed the new and the old one for some releases."""
    for name in KV_USED:
        if name in series:
            values = series[name]
            return max(values) if all(believable(v, 1.0) for v in values) else None
    return None
