"""A caller can only shorten its wait, and is told before it gives up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.adapters.patience import HEADERS, MAX_MARGIN_S, patience_s


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, math.inf),
        ({"prefer": "wait=7"}, 7),
        ({"prefer": "respond-async; wait=7, wait=3"}, 7),
        ({"prefer": "wait=0.5"}, 0.5),
        ({"prefer": "wait=5x"}, math.inf),
        ({"prefer": "wait=1e3"}, math.inf),
        ({"x-stainless-read-timeout": "600"}, 599),
        ({"x-stainless-read-timeout": "20.0"}, 19),
        ({"x-stainless-timeout": "2"}, 1.6),
        ({"x-stainless-timeout": "NOT_GIVEN"}, math.inf),
        ({"x-stainless-timeout": "None"}, math.inf),
        ({"grpc-timeout": "30S"}, 29),
        ({"grpc-timeout": "1M"}, 59),
        ({"grpc-timeout": "1H"}, 3599),
        ({"grpc-timeout": "500m"}, 0.4),
        ({"grpc-timeout": "99999999u"}, 98.999999),
        ({"grpc-timeout": "0n"}, 0),
        ({"grpc-timeout": "5"}, math.inf),
        ({"grpc-timeout": "999999999S"}, math.inf),
        ({"grpc-timeout": "30S", "prefer": "wait=9", "x-stainless-timeout": "8"}, 7),
    ],
)
def test_what_a_caller_says(headers: dict[str, str], seconds: float) -> None:
    assert patience_s(headers) == pytest.approx(seconds)


TEXTS = st.text() | st.from_regex(r"wait=\S*") | st.from_regex(r"[0-9.]{1,12}[HMSmunx]?")


@given(st.dictionaries(st.sampled_from(sorted(HEADERS)), TEXTS))
def test_whatever_it_says_is_a_time(headers: dict[str, str]) -> None:
    assert patience_s(headers) >= 0.0


@given(st.floats(0.01, 1e6))
def test_an_sdk_is_told_before_it_gives_up(timeout: float) -> None:
    told = patience_s({"x-stainless-read-timeout": f"{timeout:.3f}"})
    assert timeout - MAX_MARGIN_S - 0.01 <= told < timeout
