"""What /metrics and the ORCA header say, under vLLM's names."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from policy_server.backend.call import Call
from policy_server.backend.engine import Engine, Step

LABELS = ["model_name", "engine"]
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """A histogram of one series; `observe` costs well under a microsecond."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Add one value; a bucket includes its upper bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def family(self, name: str, text: str, labels: Sequence[str]) -> HistogramMetricFamily:
        """The cumulative form that Prometheus reads."""
        buckets: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound is None else str(float(bound)), float(seen)))
        family = HistogramMetricFamily(name, text, labels=LABELS)
        family.add_metric(list(labels), buckets, self._total)
        return family


class BackendMetrics(Collector):
    """Counts what the engine does; the gauges are read from it when asked."""

    def __init__(self, engine: Engine[Call], model: str) -> None:
        self._engine = engine
        self._labels = [model, "0"]
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        self._ttft = Histogram(TTFT_BUCKETS)
        self._gap = Histogram(TOKEN_BUCKETS)
        self._queue = Histogram(REQUEST_BUCKETS)
        self._request = Histogram(REQUEST_BUCKETS)
        self._iteration = Histogram(ITERATION_BUCKETS)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_step(self, step: Step[Call], calls: list[Call]) -> None:
        """Count one engine step and the tokens that it gave."""
        tokens = 0
        for call in calls:
            tokens += 1 if call.max_tokens else 0
            if call.generated > 1:
                self._gap.observe(call.gap_s)
            else:
                self._on_first(call)
        self.generation_tokens_total += tokens
        self._iteration.observe(step.prefill_tokens + tokens)

    def on_end(self, call: Call, reason: str) -> None:
        """Count the end of a request: `stop`, `length` or `abort`."""
        self.finished[reason] += 1
        if reason != "abort":
            self._request.observe(call.last_token - call.arrived)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry for each scrape."""
        yield from self._gauges()
        yield from self._counters()
        histograms = (
            ("time_to_first_token_seconds", "Time to first token, seconds.", self._ttft),
            ("inter_token_latency_seconds", "Time between two tokens, seconds.", self._gap),
            ("request_queue_time_seconds", "Time in the engine's queue, seconds.", self._queue),
            ("e2e_request_latency_seconds", "Whole request, seconds.", self._request),
            ("iteration_tokens_total", "Tokens per engine step.", self._iteration),
        )
        for name, text, histogram in histograms:
            yield histogram.family(f"vllm:{name}", text, self._labels)

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        gauges = (
            ("num_requests_running", "Requests that run.", len(engine.running)),
            ("num_requests_waiting", "Requests that wait for a slot.", len(engine.waiting)),
            ("kv_cache_usage_perc", "KV cache in use; 1 is all of it.", engine.kv_usage),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge

    def _counters(self) -> Iterator[Metric]:
        counters = (
            ("num_preemptions", "Preemptions.", self._engine.preemptions_total),
            ("prompt_tokens", "Prompt tokens computed.", self.prompt_tokens_total),
            ("generation_tokens", "Tokens generated.", self.generation_tokens_total),
        )
        for name, text, value in counters:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        ends = CounterMetricFamily(
            "vllm:request_success", "Requests ended.", labels=[*LABELS, "finished_reason"]
        )
        for reason, count in self.finished.items():
            ends.add_metric([*self._labels, reason], count)
        yield ends

    def _on_first(self, call: Call) -> None:
        self._ttft.observe(call.first_token - call.arrived)
        self._queue.observe(call.scheduled - call.arrived)
        self.prompt_tokens_total += call.prompt_tokens


def orca_header(engine: Engine[Call], wanted: str) -> str | None:
    """Value of `endpoint-load-metrics` in the format asked for, TEXT or JSON; None = another."""
    report = {
        "kv_cache_usage_perc": float(engine.kv_usage),
        "num_requests_waiting": float(len(engine.waiting)),
    }
    form = wanted.strip().upper()
    if form == "TEXT":
        return "TEXT " + ", ".join(f"named_metrics.{key}={value}" for key, value in report.items())
    if form == "JSON":
        return "JSON " + json.dumps({"named_metrics": report})
    return None
