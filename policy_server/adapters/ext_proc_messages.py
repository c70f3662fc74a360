"""ext_proc on the wire: requests to plain facts, decisions to serialized responses.

Answers are bytes: the common ones are serialized once and shared by all requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from policy_server.adapters.answers import HttpAnswer
from policy_server.adapters.classify import BodyFacts, Facts
from policy_server.adapters.protos import (
    DecodeError,
    HeaderValueOption,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    Struct,
    Value,
    wire,
)
from policy_server.adapters.rules import ClassifyRules
from policy_server.core.request import Priority

BODY_NAMESPACE = "policy.request"
"""Dynamic metadata that json_to_metadata fills in front of the gate."""
ANSWER_NAMESPACE = "policy"
ATTRIBUTES = "envoy.filters.http.ext_proc"
OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
OBSERVE_HEADER = "x-policy-observe"
ORCA_ASK = ("endpoint-load-metrics-format", "JSON")
_NO_MODEL = BodyFacts()


def parse(raw: bytes) -> ProcessingRequest | None:
    """The message, None when the bytes are none."""
    try:
        return ProcessingRequest.FromString(raw)
    except DecodeError:
        return None


def facts_of(message: ProcessingRequest, rules: ClassifyRules, node: str) -> Facts:
    """What classification needs of a request_headers message."""
    metadata = message.metadata_context.filter_metadata
    body = metadata.get(BODY_NAMESPACE)
    source = rules.tenant.metadata
    route, cluster = _routed(message.attributes.get(ATTRIBUTES)) if rules.routed else ("", "")
    return Facts(
        headers=headers_of(message.request_headers, rules.wanted_headers),
        body=_body_facts(body) if body is not None else _NO_MODEL,
        tenant=_text_at(metadata.get(source[0]), source[1:]) if source else "",
        route=route,
        cluster=cluster,
        node=node,
    )


def headers_of(message: HttpHeaders, wanted: frozenset[str]) -> dict[str, str]:
    """The wanted headers; duplicates joined, bytes that are no UTF-8 replaced."""
    found: dict[str, str] = {}
    for header in message.headers.headers:
        key = header.key
        if key in wanted:
            value = header.raw_value.decode("utf-8", "replace") or header.value
            found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _body_facts(body: Struct) -> BodyFacts:
    fields = body.fields
    model, stream, limit = fields.get("model"), fields.get("stream"), fields.get("max_tokens")
    if limit is None:
        limit = fields.get("max_completion_tokens")
    return BodyFacts(
        model=model.string_value if model is not None else "",
        stream=stream.bool_value if stream is not None else False,
        max_tokens=limit.number_value if limit is not None else 0.0,
    )


def _routed(attributes: Struct | None) -> tuple[str, str]:
    if attributes is None:
        return "", ""
    fields = attributes.fields
    route, cluster = fields.get("xds.route_name"), fields.get("xds.cluster_name")
    return route.string_value if route else "", cluster.string_value if cluster else ""


def _text_at(struct: Struct | None, keys: tuple[str, ...]) -> str:
    """The string (or whole number) at a path in nested metadata, "" when there is none."""
    value: Value | None = None
    for key in keys:
        value = struct.fields.get(key) if struct is not None else None
        if value is None:
            return ""
        struct = value.struct_value if value.HasField("struct_value") else None
    if value is None:
        return ""
    return value.string_value or (f"{value.number_value:.0f}" if value.number_value else "")


class Go(NamedTuple):
    """An admission as the client's side sees it."""

    pool: str
    priority: Priority
    observe: bool
    wait_ms: int = 0


class GoAnswers:
    """Serialized admissions. Those without a wait are few, so each is built once."""

    def __init__(self, orca_pools: frozenset[str]) -> None:
        self._orca_pools = orca_pools
        self._ready: dict[Go, bytes] = {}

    def of(self, go: Go) -> bytes:
        """The response that lets the request go."""
        if go.wait_ms:
            return self._build(go)
        answer = self._ready.get(go)
        if answer is None:
            answer = self._ready[go] = self._build(go)
        return answer

    def _build(self, go: Go) -> bytes:
        response = ProcessingResponse()
        headers = {OBSERVE_HEADER: "1" if go.observe else "0"}
        if go.pool in self._orca_pools:
            headers[ORCA_ASK[0]] = ORCA_ASK[1]
        mutation = response.request_headers.response.header_mutation
        mutation.set_headers.extend(_options(headers))
        policy = response.dynamic_metadata.fields[ANSWER_NAMESPACE].struct_value.fields
        policy["queue_wait_ms"].number_value = go.wait_ms
        policy["class"].string_value = go.priority.name
        policy["pool"].string_value = go.pool
        return wire(response)


def passed() -> bytes:
    """The response for a request that is not governed: go on, unobserved, no lease."""
    response = ProcessingResponse()
    mutation = response.request_headers.response.header_mutation
    mutation.set_headers.extend(_options({OBSERVE_HEADER: "0"}))
    return wire(response)


def refusal(answer: HttpAnswer) -> bytes:
    """The response that makes Envoy answer the client itself."""
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = answer.status
    immediate.headers.set_headers.extend(_options(dict(answer.headers)))
    immediate.body = answer.body
    immediate.details = answer.details
    if answer.grpc_status is not None:
        immediate.grpc_status.status = answer.grpc_status
    return wire(response)


def empty_answer(kind: str) -> bytes:
    """The neutral response to any other kind of message (`ProcessingRequest`'s oneof name)."""
    response = ProcessingResponse()
    getattr(response, kind).SetInParent()
    return wire(response)


def _options(headers: Mapping[str, str]) -> list[HeaderValueOption]:
    options = []
    for key, value in headers.items():
        option = HeaderValueOption(append_action=OVERWRITE)
        option.header.key = key
        option.header.raw_value = value.encode()  # Envoy takes an empty header from `value`
        options.append(option)
    return options
