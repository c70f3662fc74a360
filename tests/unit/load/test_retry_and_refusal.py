"""Retries as the official SDKs make them; refusals as the contract wants them."""

from __future__ import annotations

import random

import pytest

from policy_server.load.refusal import faults
from policy_server.load.retry import delay_s, should_retry


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {}, True),
        (503, {}, True),
        (408, {}, True),
        (409, {}, True),
        (None, {}, True),
        (400, {}, False),
        (200, {}, False),
        (429, {"x-should-retry": "false"}, False),
        (400, {"x-should-retry": "true"}, True),
    ],
)
def test_what_is_retried(status: int | None, headers: dict[str, str], expected: bool) -> None:
    assert should_retry(status, headers) is expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "6500"}, 6.5),
        ({"retry-after": "60"}, 60.0),
    ],
)
def test_retry_after_is_honoured(headers: dict[str, str], expected: float) -> None:
    assert delay_s(0, headers, random.Random(1)) == expected


@pytest.mark.parametrize("told", ["61", "0", "-3", "soon", "nan", "inf"])
def test_an_unusable_retry_after_means_exponential_backoff(told: str) -> None:
    rng = random.Random(1)
    for retries, top in ((0, 0.5), (1, 1.0), (10, 8.0)):
        waits = [delay_s(retries, {"retry-after": told}, rng) for _ in range(50)]
        assert all(0.75 * top <= wait <= top for wait in waits)
        assert len(set(waits)) > 1


def test_a_refusal_that_keeps_the_contract_has_no_faults() -> None:
    headers = {"retry-after": "3", "retry-after-ms": "2100", "x-policy-reason": "room_full"}
    assert faults(headers) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"retry-after": "2.5"}, "whole number"),
        ({"retry-after": ""}, "whole number"),
        ({"retry-after": "0", "retry-after-ms": "0"}, "outside"),
        ({"retry-after": "56", "retry-after-ms": "56000"}, "outside"),
        ({"retry-after-ms": "3001"}, "ceil"),
        ({"retry-after-ms": "2000"}, "ceil"),
        ({"retry-after-ms": "x"}, "retry-after-ms"),
        ({"x-policy-reason": ""}, "x-policy-reason"),
    ],
)
def test_each_fault_is_named(changes: dict[str, str], named: str) -> None:
    headers = {"retry-after": "3", "retry-after-ms": "2100", "x-policy-reason": "room_full"}
    assert any(named in fault for fault in faults(headers | changes))
