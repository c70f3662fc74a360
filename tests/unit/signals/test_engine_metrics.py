"""The engines' own pages, as they write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.backend.call import Call
from policy_server.backend.engine import Engine
from policy_server.backend.metrics import BackendMetrics
from policy_server.backend.params import EngineParams
from policy_server.core.samples import LoadReport
from policy_server.signals.engine_metrics import MAX_SERIES, read_page

NOW = 1_700_000_000.0

VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 12.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.42
vllm:num_preemptions_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 5.0
vllm:num_preemptions_created{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.7e+09
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
"""
DATA_PARALLEL = """
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.95
"""
OLD_VLLM = """
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.7
vllm:cpu_cache_usage_perc{model_name="m"} 0.0
"""
SGLANG = """
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0"} 7.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1",pp_rank="0"} 7.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0"} 2.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="1",pp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0"} 0.28
"""
TGI = """
# TYPE tgi_queue_size gauge
tgi_queue_size 5
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 16
tgi_request_queue_duration_bucket{le="0.001"} 1
"""
TRITON = """
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="encoder",version="1"} 4.000000
nv_inference_pending_request_count{model="llm",version="1"} 6.000000
nv_inference_queue_duration_us{model="llm",version="1"} 1000
"""
LLAMA_CPP = """
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 9
"""


@pytest.mark.parametrize(
    ("page", "report"),
    [
        (VLLM, LoadReport(3, 12, 0.42, 5)),
        (DATA_PARALLEL, LoadReport(7, None, 0.95)),
        (OLD_VLLM, LoadReport(1, None, 0.7)),
        (SGLANG, LoadReport(2, 7, 0.28)),
        (TGI, LoadReport(5, 16)),
        (TRITON, LoadReport(10)),
        (LLAMA_CPP, LoadReport(9, 4)),
        ("", LoadReport()),
        ("<html>not found</html>", LoadReport()),
        ('vllm:num_requests_waiting{model_name="a } b\\" {c"} 3\r\n', LoadReport(3)),
        ("vllm:num_requests_waiting\t3 # {trace=\"x\"} 1", LoadReport(3)),
        ("vllm:num_requests_waiting", LoadReport()),
        ("vllm:num_requests_waiting_by_reason 3", LoadReport()),
        (" vllm:num_requests_waiting 3", LoadReport()),
        ("x_vllm:num_requests_waiting 3", LoadReport()),
    ],
)  # fmt: skip
def test_pages(page: str, report: LoadReport) -> None:
    found = read_page(page.encode(), NOW)
    assert found.scraped
    assert (found.waiting, found.running) == (report.waiting, report.running)
    assert (found.kv_used, found.preemptions_total) == (report.kv_used, report.preemptions_total)


@pytest.mark.parametrize("lie", ["NaN", "-1", "1e300", "+Inf", "many", "0x10", "1_0_0_0_0_0_0_0"])
def test_a_value_that_cannot_be_true_spoils_its_figure_only(lie: str) -> None:
    page = f'tgi_queue_size{{r="a"}} 3\ntgi_queue_size{{r="b"}} {lie}\ntgi_batch_current_size 2\n'
    report = read_page(page.encode(), NOW)
    assert (report.waiting, report.running) == (None, 2)


@pytest.mark.parametrize("lie", ["42", "-0.1", "nan", "1.01"])
def test_a_cache_is_never_fuller_than_full(lie: str) -> None:
    page = f"vllm:kv_cache_usage_perc {lie}\nvllm:num_requests_waiting 1\n"
    report = read_page(page.encode(), NOW)
    assert (report.kv_used, report.waiting) == (None, 1)


def test_a_page_with_too_many_series_is_not_half_read() -> None:
    page = b'vllm:num_requests_waiting{model_name="m"} 1\n' * (MAX_SERIES + 1)
    assert read_page(page, NOW).waiting is None


@pytest.mark.parametrize(("written_s", "age_s"), [(NOW - 1, 0.0), (NOW + 60, 0.0), (NOW - 30, 30)])
def test_lines_that_say_when_they_were_true_can_be_old(written_s: float, age_s: float) -> None:
    page = f"vllm:num_requests_waiting 3 {written_s * 1000:.0f}\n"
    assert read_page(page.encode(), NOW).age_s == pytest.approx(age_s)


def test_the_emulators_page_is_understood() -> None:
    engine: Engine[Call] = Engine(EngineParams())
    report = read_page(BackendMetrics(engine, "m").render(), NOW)
    assert report == LoadReport(0, 0, 0.0, 0, scraped=True)


NAMES = re.findall(r"^([a-z_:]+)", "\n".join([VLLM, SGLANG, TGI, TRITON, LLAMA_CPP]), re.MULTILINE)
LINES = st.builds(
    "{}{} {}\n".format, st.sampled_from(NAMES), st.text(max_size=30), st.floats() | st.text()
)


@given(st.lists(LINES, max_size=20).map("".join) | st.text(), st.binary(max_size=50))
def test_no_page_raises_or_is_believed_beyond_reason(text: str, tail: bytes) -> None:
    report = read_page(text.encode("utf-8", "surrogatepass") + tail, NOW)
    for count in (report.waiting, report.running):
        assert count is None or 0 <= count <= 1e6
    assert report.kv_used is None or 0 <= report.kv_used <= 1
