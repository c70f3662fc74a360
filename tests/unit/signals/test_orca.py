"""Load reports and asks in response headers."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from policy_server.core.samples import LoadReport
from policy_server.signals.orca import MAX_REPORT_BYTES, read_report
from policy_server.signals.orca_binary import named_figures

VLLM = LoadReport(waiting=3.0, kv_used=0.5)
NOTHING = LoadReport()


@pytest.mark.parametrize(
    ("value", "report"),
    [
        ('JSON {"named_metrics": {"kv_cache_usage_perc": 0.5, "num_requests_waiting": 3}}', VLLM),
        ('JSON {"namedMetrics": {"kv_cache_usage_perc": 0.5, "num_requests_waiting": 3}}', VLLM),
        ("TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=3", VLLM),
        ("json {\"num_requests_running\": 7}", LoadReport(running=7.0)),
        ('JSON {"named_metrics": {"num_preemptions_total": 2}}', LoadReport(preemptions_total=2.0)),
        ('JSON {"named_metrics": {"kv_cache_utilization": 0.25, "max_token_capacity": 9}}',
         LoadReport(kv_used=0.25)),
        ('JSON {"named_metrics": {"num_requests_waiting": "2"}}', LoadReport(waiting=2.0)),
        ('JSON {"named_metrics": {"num_requests_waiting": NaN, "kv_cache_usage_perc": 0.5}}',
         LoadReport(kv_used=0.5)),
        ('JSON {"named_metrics": {"other": 1}}', NOTHING),
        ('JSON {"named_metrics": {"num_requests_waiting": -1}}', NOTHING),
        ('JSON {"named_metrics": {"num_requests_waiting": 1e300}}', NOTHING),
        ('JSON {"named_metrics": {"num_requests_waiting": 1' + "0" * 400 + '}}', NOTHING),
        ('JSON {"named_metrics": {"num_requests_waiting": true}}', NOTHING),
        ('JSON {"named_metrics": {"num_requests_waiting": null}}', NOTHING),
        ('JSON {"named_metrics": {"kv_cache_usage_perc": 97}}', NOTHING),
        ('JSON {"named_metrics": {"num_requests_waiting": Infinity}}', NOTHING),
        ('JSON {"named_metrics": [1]}', NOTHING),
        ('JSON {"named_metrics"', NOTHING),
        ("JSON []", NOTHING),
        ("JSON " + "[" * 10_000, NOTHING),
        ("BIN %%%", NOTHING),
        ("", NOTHING),
        ("TEXT num_requests_waiting=x", NOTHING),
        ("TEXT num_requests_waiting=1" + "," * MAX_REPORT_BYTES, NOTHING),
    ],
)  # fmt: skip
def test_reports(value: str, report: LoadReport) -> None:
    assert read_report({"endpoint-load-metrics": value}) == report


@pytest.mark.parametrize(
    "headers",
    [
        {"endpoint-load-metrics-bin": "{}"},
        {"endpoint-load-metrics": "BIN {}"},
    ],
)
@pytest.mark.parametrize("padding", ["", "="])
def test_the_binary_form(headers: dict[str, str], padding: str) -> None:
    message = OrcaLoadReport(cpu_utilization=0.3, rps=7, rps_fractional=7.5)
    message.utilization["kv_cache_usage_perc"] = 0.5
    message.named_metrics["num_requests_waiting"] = 3
    text = base64.b64encode(message.SerializeToString()).decode()
    text = text.rstrip("=") if not padding else text
    assert read_report({k: v.format(text) for k, v in headers.items()}) == VLLM


@given(
    st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=8),
    st.floats(allow_nan=False),
    st.integers(0, 2**64 - 1),
)
def test_the_binary_form_is_what_the_generated_class_writes(
    named: dict[str, float], cpu: float, rps: int
) -> None:
    message = OrcaLoadReport(cpu_utilization=cpu, rps=rps)
    message.named_metrics.update(named)
    assert named_figures(message.SerializeToString()) == named


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_said_to_be_none(raw: bytes) -> None:
    try:
        named_figures(raw)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("headers", "report"),
    [
        ({"x-aqueduct-rps": "2.5"}, LoadReport(asked_rps=2.5)),
        ({"x-aquifer-max-concurrent": " 8 "}, LoadReport(asked_seats=8.0)),
        ({"x-aqueduct-rps": "5", "x-aquifer-rps": "1"}, LoadReport(asked_rps=5.0)),
        ({"x-aqueduct-rps": "soon", "x-aquifer-rps": "1"}, LoadReport(asked_rps=1.0)),
        ({"x-aqueduct-max-concurrent": "8, 4"}, LoadReport(asked_seats=4.0)),
        ({"x-aqueduct-max-concurrent": "0", "endpoint-load-metrics": "TEXT num_requests_waiting=3"},
         LoadReport(waiting=3.0, asked_seats=0.0)),
        ({"x-aqueduct-rps": "-1"}, NOTHING),
        ({"x-aqueduct-rps": "nan"}, NOTHING),
        ({"x-aqueduct-rps": "1e300"}, NOTHING),
        ({"x-aqueduct-rps": ""}, NOTHING),
        ({}, None),
        ({"content-type": "text/plain"}, None),
    ],
)  # fmt: skip
def test_asks(headers: dict[str, str], report: LoadReport | None) -> None:
    assert read_report(headers) == report


def believable(report: LoadReport | None) -> bool:
    if report is None:
        return True
    counts = (report.waiting, report.running, report.asked_rps, report.asked_seats)
    return all(c is None or 0 <= c <= 1e6 for c in counts) and (
        report.kv_used is None or 0 <= report.kv_used <= 1
    )


@given(
    st.sampled_from(["JSON ", "TEXT ", "BIN ", "JSON {", "TEXT num_requests_waiting=", ""]),
    st.text(),
    st.text(max_size=20),
)
def test_no_text_raises_or_is_believed_beyond_reason(form: str, text: str, asked: str) -> None:
    headers = {
        "endpoint-load-metrics": form + text,
        "endpoint-load-metrics-bin": text,
        "x-aqueduct-rps": asked,
    }
    assert believable(read_report(headers))


@given(st.floats(), st.floats())
def test_no_number_is_believed_beyond_reason(waiting: float, kv: float) -> None:
    text = f"TEXT num_requests_waiting={waiting},kv_cache_usage_perc={kv}"
    report = read_report({"endpoint-load-metrics": text, "x-aqueduct-rps": str(waiting)})
    assert believable(report)
