"""What a refused client reads."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.adapters.answers import (
    Dialect,
    HttpAnswer,
    dialect_of,
    overloaded_answers,
    shed_answer,
)
from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason
from policy_server.core.request import Priority, Request

REQUEST = Request("uid", "default", Priority.P1, arrived=0.0, deadline=15.0)
ROOM_FULL = ShedReason.ROOM_FULL


def answer(
    reason: ShedReason = ROOM_FULL,
    retry_after_s: float = 2.5,
    dialect: Dialect = Dialect.OPENAI,
    should_retry: bool = True,
) -> HttpAnswer:
    shed = Shed(REQUEST, reason, retry_after_s, 0.0, evicted=False, should_retry=should_retry)
    return shed_answer(shed, dialect)


@pytest.mark.parametrize("reason", ShedReason)
@pytest.mark.parametrize("dialect", Dialect)
def test_every_refusal_tells_when_to_come_back(reason: ShedReason, dialect: Dialect) -> None:
    told = answer(reason, 2.5, dialect)
    headers = dict(told.headers)
    assert told.status == (429 if reason.capacity_exists else 503)
    assert headers["retry-after"] == "3"
    assert headers["retry-after-ms"] == "2500"
    assert headers["x-policy-reason"] == reason.value
    assert ("x-envoy-ratelimited" in headers) == (told.status == 429)
    assert "3 seconds" in told.body.decode()
    assert b"quota" not in told.body.lower()


@given(st.floats(min_value=-1, max_value=1e6))
def test_the_two_retry_headers_never_disagree(retry_after_s: float) -> None:
    headers = dict(answer(retry_after_s=retry_after_s).headers)
    assert 1 <= int(headers["retry-after"]) <= 55
    assert int(headers["retry-after"]) == math.ceil(int(headers["retry-after-ms"]) / 1000)


def test_openai_clients_get_their_error_object() -> None:
    body = json.loads(answer().body)
    assert body["error"]["type"] == "rate_limit_error"
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert body["error"]["param"] is None
    assert body["status"] == 429
    assert body["detail"] == body["error"]["message"]
    assert {"type", "title"} <= body.keys()
    unavailable = json.loads(answer(ShedReason.NO_BACKEND).body)
    assert unavailable["error"]["type"] == "server_error"
    assert unavailable["error"]["code"] == "overloaded"


def test_anthropic_clients_get_theirs() -> None:
    body = json.loads(answer(dialect=Dialect.ANTHROPIC).body)
    assert body["type"] == "error"
    assert body["error"]["type"] == "rate_limit_error"
    assert body["status"] == 429
    unavailable = json.loads(answer(ShedReason.DRAINING, dialect=Dialect.ANTHROPIC).body)
    assert unavailable["error"]["type"] == "overloaded_error"


def test_grpc_callers_get_a_status_and_a_pushback() -> None:
    told = answer(dialect=Dialect.GRPC)
    assert told.grpc_status == 8
    assert dict(told.headers)["grpc-retry-pushback-ms"] == "2500"
    assert answer(ShedReason.NO_BACKEND, dialect=Dialect.GRPC).grpc_status == 14
    assert not told.body.startswith(b"{")


def test_a_client_that_should_not_retry_is_told() -> None:
    assert dict(answer(should_retry=False).headers)["x-should-retry"] == "false"
    assert "x-should-retry" not in dict(answer().headers)


@pytest.mark.parametrize(
    ("path", "content_type", "dialect"),
    [
        ("/v1/chat/completions", "application/json", Dialect.OPENAI),
        ("/v1/messages", "application/json", Dialect.ANTHROPIC),
        ("/anthropic/v1/messages", "", Dialect.ANTHROPIC),
        ("/inference.GRPCInferenceService/ModelInfer", "application/grpc+proto", Dialect.GRPC),
        ("/v1/messages", "Application/gRPC", Dialect.GRPC),
    ],
)
def test_the_path_tells_the_dialect(path: str, content_type: str, dialect: Dialect) -> None:
    assert dialect_of(path, content_type) is dialect


@pytest.mark.parametrize("dialect", Dialect)
def test_the_constant_answers_spread_the_clients(dialect: Dialect) -> None:
    answers = overloaded_answers(dialect)
    assert {a.status for a in answers} == {429}
    assert len({dict(a.headers)["retry-after"] for a in answers}) == len(answers)
    assert {dict(a.headers)["x-policy-reason"] for a in answers} == {"overloaded"}


def test_a_ticket_is_handed_out_with_the_refusal() -> None:
    shed = Shed(REQUEST, ROOM_FULL, 2.5, 0.0, evicted=False)
    for dialect in Dialect:
        assert dict(shed_answer(shed, dialect, "ticket").headers)["x-queue-ticket"] == "ticket"
    assert "x-queue-ticket" not in dict(answer().headers)


@pytest.mark.parametrize(
    ("reason", "limit"),
    [(ROOM_FULL, "default"), (ShedReason.TENANT_LIMIT, "tenant")],
)
def test_the_rate_limit_field_says_only_what_is_true(reason: ShedReason, limit: str) -> None:
    headers = dict(answer(reason).headers)
    assert headers["ratelimit"] == f'"{limit}";r=0;t=3'
    for none in (answer(ShedReason.DRAINING), answer(reason, dialect=Dialect.GRPC)):
        assert "ratelimit" not in dict(none.headers)
    assert not [name for name in headers if name.startswith(("x-ratelimit", "ratelimit-"))]


def test_a_grpc_caller_that_should_not_retry_is_pushed_back_for_good() -> None:
    headers = dict(answer(dialect=Dialect.GRPC, should_retry=False).headers)
    assert headers["grpc-retry-pushback-ms"] == "-1"
