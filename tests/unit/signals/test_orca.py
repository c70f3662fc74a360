"""Load reports in response headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.samples import LoadReport
from policy_server.signals.orca import MAX_REPORT_BYTES, read_report

VLLM = LoadReport(waiting=3.0, kv_used=0.5)


@pytest.mark.parametrize(
    ("value", "report"),
    [
        ('JSON {"named_metrics": {"kv_cache_usage_perc": 0.5, "num_requests_waiting": 3}}', VLLM),
        ("TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=3", VLLM),
        ("json {\"num_requests_running\": 7}", LoadReport(running=7.0)),
        ('JSON {"named_metrics": {"num_preemptions_total": 2}}', LoadReport(preemptions_total=2.0)),
        ('JSON {"named_metrics": {"kv_cache_utilization": 0.25}}', LoadReport(kv_used=0.25)),
        ('JSON {"named_metrics": {"other": 1}}', None),
        ('JSON {"named_metrics": {"num_requests_waiting": -1}}', None),
        ('JSON {"named_metrics": {"num_requests_waiting": NaN}}', None),
        ('JSON {"named_metrics": [1]}', None),
        ('JSON {"named_metrics"', None),
        ("JSON []", None),
        ("JSON " + "[" * 10_000, None),
        ("BIN CgwKBA==", None),
        ("", None),
        ("TEXT num_requests_waiting=x", None),
        ("TEXT num_requests_waiting=1" + "," * MAX_REPORT_BYTES, None),
    ],
)  # fmt: skip
def test_reports(value: str, report: LoadReport | None) -> None:
    assert read_report({"endpoint-load-metrics": value}) == report


def test_no_header_no_report() -> None:
    assert read_report({}) is None


@given(st.sampled_from(["JSON ", "TEXT ", ""]), st.text())
def test_no_value_raises(form: str, text: str) -> None:
    read_report({"endpoint-load-metrics": form + text})
