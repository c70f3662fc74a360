"""Messages to facts, decisions to messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    CommonResponse,
    ProcessingRequest,
    ProcessingResponse,
)

from policy_server.adapters.answers import Dialect, shed_answer
from policy_server.adapters.desk import Go, Words
from policy_server.adapters.ext_proc_messages import (
    Asker,
    GateEncoder,
    StreamEncoder,
    answer_head,
    empty_answer,
    facts_of,
    parse,
)
from policy_server.adapters.rules import ClassifyRules, PoolRule, TenantSource
from policy_server.core.request import Priority, Request
from tests.support.ext_proc_messages import request_headers, response_headers
from tests.support.fake_gate import shed


def read(raw: bytes) -> ProcessingResponse:
    return ProcessingResponse.FromString(raw)


def headers_set(common: CommonResponse) -> dict[str, bytes]:
    return {h.header.key: h.header.raw_value for h in common.header_mutation.set_headers}


def test_only_wanted_headers_are_read_and_duplicates_are_joined() -> None:
    message = request_headers(headers={"x-other": "1", "prefer": "respond-async"})
    message.request_headers.headers.headers.add(key="prefer", raw_value=b"wait=3")
    headers = facts_of(message, ClassifyRules(), Asker("")).headers
    assert headers["prefer"] == "respond-async, wait=3"
    assert "x-other" not in headers


def test_values_come_in_either_field_and_as_any_bytes() -> None:
    message = ProcessingRequest()
    add = message.request_headers.headers.headers.add
    add(key=":path", value="/v1/x")
    add(key="x-request-priority", raw_value=b"\xff\xfe\x00")
    add(key="x-tenant-id", raw_value=b"t" * 65536)
    headers = facts_of(message, ClassifyRules(), Asker("")).headers
    assert headers[":path"] == "/v1/x"
    assert headers["x-request-priority"].startswith("\ufffd")
    assert len(headers["x-tenant-id"]) == 65536


def test_body_fields_come_from_envoys_metadata() -> None:
    body = {"model": "llama", "stream": True, "max_tokens": 64}
    facts = facts_of(
        request_headers(metadata={"policy.request": body}), ClassifyRules(), Asker("n1")
    )
    assert (facts.body.model, facts.body.stream, facts.body.max_tokens) == ("llama", True, 64)
    assert facts.node == "n1"


def test_body_fields_of_the_wrong_type_are_not_there() -> None:
    body = {"model": ["x"], "stream": "so", "max_tokens": {"a": 1}, "max_output_tokens": "8x"}
    facts = facts_of(request_headers(metadata={"policy.request": body}), ClassifyRules(), Asker(""))
    assert (facts.body.model, facts.body.stream, facts.body.max_tokens) == ("", False, 0)


@pytest.mark.parametrize(
    ("asked", "at_most"),
    [
        ({"max_completion_tokens": 8}, 8),
        ({"max_output_tokens": 8}, 8),
        ({"max_tokens": 1, "max_completion_tokens": 4096}, 4096),
        ({"max_tokens": 1, "max_output_tokens": 4096}, 4096),
        ({"max_tokens": 4096, "max_completion_tokens": 1}, 4096),
        ({"max_tokens": {"a": 1}, "max_completion_tokens": 8}, 8),
    ],
)
def test_an_answer_may_be_as_long_as_the_largest_of_the_fields_says(
    asked: dict[str, object], at_most: int
) -> None:
    message = request_headers(metadata={"policy.request": asked})
    assert facts_of(message, ClassifyRules(), Asker("")).body.max_tokens == at_most


@pytest.mark.parametrize("said", [True, 1, "true", "1", " Yes "])
def test_what_model_servers_take_for_true_and_for_numbers_counts(said: object) -> None:
    body = {"stream": said, "max_tokens": " 12 "}
    facts = facts_of(request_headers(metadata={"policy.request": body}), ClassifyRules(), Asker(""))
    assert (facts.body.stream, facts.body.max_tokens) == (True, 12)


@pytest.mark.parametrize(
    ("metadata", "read", "broken"),
    [
        ({"policy.request": {"uid": "u", "model": ""}}, True, False),
        ({"policy.request": {"uid": "u", "read": True}}, True, False),
        ({"policy.request": {"uid": "u", "unread": True}}, False, True),
        ({"policy.request": {"uid": "u"}}, False, False),  # a tunnel
        ({}, False, False),  # a mesh that can't
    ],
)
def test_whether_the_body_was_read(metadata: dict[str, object], read: bool, broken: bool) -> None:
    facts = facts_of(request_headers(metadata=metadata), ClassifyRules(), Asker(""))
    assert (facts.body.read, facts.body.broken) == (read, broken)


@pytest.mark.parametrize(
    ("claims", "tenant"),
    [({"sub": "acme"}, "acme"), ({"sub": 42}, "42"), ({"sub": {"a": 1}}, ""), ("x", ""), ({}, "")],
)
def test_a_tenant_deep_in_the_metadata(claims: object, tenant: str) -> None:
    rules = ClassifyRules(tenant=TenantSource(metadata=("jwt", "claims", "sub")))
    message = request_headers(metadata={"jwt": {"claims": claims}})
    assert facts_of(message, rules, Asker("")).tenant == tenant
    assert facts_of(request_headers(), rules, Asker("")).tenant == ""


def test_route_and_cluster_are_read_when_a_pool_asks() -> None:
    message = request_headers()
    attributes = message.attributes["envoy.filters.http.ext_proc"]
    attributes.update({"xds.route_name": "r1", "xds.cluster_name": "c1"})
    rules = ClassifyRules(pools=(PoolRule("p", route="r1"),))
    facts = facts_of(message, rules, Asker(""))
    assert (facts.route, facts.cluster) == ("r1", "c1")
    assert facts_of(request_headers(), rules, Asker("")).route == ""
    assert facts_of(message, ClassifyRules(), Asker("")).route == ""


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("2026-11-30T01:41:52.559797+00:00", 1796002912.559797),
        ("2026-11-30T01:41:52+00:00", 1796002912.0),
        ("", 0.0),
        ("soon", 0.0),
    ],
)
def test_when_envoy_took_it_in(time: str, seconds: float) -> None:
    message = request_headers()
    attributes = message.attributes["envoy.filters.http.ext_proc"]
    attributes.fields["request.time"].string_value = time
    assert facts_of(message, ClassifyRules(), Asker("", aged=True)).taken_in == seconds
    assert facts_of(message, ClassifyRules(), Asker("")).taken_in == 0.0  # nobody asked


def test_an_admission_sets_headers_and_metadata() -> None:
    words = GateEncoder()
    told = read(words.admitted(Go("llm", Priority.P0, observe=True, ask_load=True, wait_ms=12)))
    common = told.request_headers.response
    assert headers_set(common) == {
        "x-policy-observe": b"1",
        "endpoint-load-metrics-format": b"JSON",
    }
    assert all(h.append_action == 2 for h in common.header_mutation.set_headers)
    assert told.dynamic_metadata["policy"] == {"queue_wait_ms": 12, "class": "P0", "pool": "llm"}
    other = read(words.admitted(Go("web", Priority.P1)))
    assert headers_set(other.request_headers.response) == {"x-policy-observe": b"0"}
    assert other.dynamic_metadata["policy"]["queue_wait_ms"] == 0


def test_common_admissions_are_built_once() -> None:
    words = Words(GateEncoder())
    one = Request("u", "p", Priority.P1, arrived=0.0, deadline=1.0)
    other = replace(one, uid="v", tenant="acme")
    assert words.admitted(one, False, False, 0.0) is words.admitted(other, False, False, 0.0)
    assert words.admitted(one, False, False, 0.0) != words.admitted(one, True, False, 0.0)
    assert words.admitted(one, False, False, 0.0) != words.admitted(one, False, False, 0.012)


def test_a_single_stream_asks_to_be_kept_to_the_end() -> None:
    told = read(StreamEncoder().admitted(Go("p", Priority.P1)))
    assert told.HasField("request_headers")
    modes = told.mode_override
    assert (modes.response_header_mode, modes.response_trailer_mode) == (1, 1)
    assert (modes.request_body_mode, modes.response_body_mode) == (0, 0)
    assert not read(StreamEncoder().passed()).HasField("mode_override")


def test_the_head_of_an_answer() -> None:
    message = response_headers("429", observed=False)
    message.response_headers.headers.headers.add(key="x-aqueduct-rps", raw_value=b"5")
    message.attributes["envoy.filters.http.ext_proc"].update(
        {"response.code_details": "via_upstream", "upstream.address": "10.0.0.1:8000"}
    )
    head = answer_head(message)
    assert (head.status, head.headers) == (429, {"x-aqueduct-rps": "5"})
    assert (head.details, head.upstream) == ("via_upstream", "10.0.0.1:8000")
    bare = answer_head(response_headers("nonsense", observed=False))
    assert (bare.status, bare.details, bare.upstream) == (0, "", "")


def test_what_is_not_governed_goes_on_unobserved() -> None:
    told = read(GateEncoder().passed())
    assert headers_set(told.request_headers.response) == {"x-policy-observe": b"0"}
    assert not told.HasField("dynamic_metadata")


def test_a_refusal_is_an_immediate_response() -> None:
    answer = shed_answer(shed(Request("u", "p", Priority.P1, 0, 1)), Dialect.GRPC)
    told = read(GateEncoder().refused(answer)).immediate_response
    assert told.status.code == 429
    assert told.grpc_status.status == 8
    assert told.details == "policy_room_full"
    values = {h.header.key: h.header.raw_value for h in told.headers.set_headers}
    assert values["retry-after"] == b"3"
    assert all(not h.header.value for h in told.headers.set_headers)


@pytest.mark.parametrize("field", ProcessingRequest.DESCRIPTOR.oneofs_by_name["request"].fields)
def test_every_kind_has_a_neutral_answer(field: object) -> None:
    kind = field.name  # type: ignore[attr-defined]
    assert read(empty_answer(kind)).WhichOneof("response") == kind


def test_bytes_that_are_no_message() -> None:
    assert parse(b"\xff\xff\xff") is None
    assert parse(b"") is not None
