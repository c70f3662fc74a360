"""ext_proc on the wire: requests to plain facts, decisions to serialized responses.

Answers are bytes: the common ones are serialized once and shared by all requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from policy_server.adapters import grpc_status
from policy_server.adapters.answers import HttpAnswer
from policy_server.adapters.classify import MAX_DIGITS, BodyFacts, Facts
from policy_server.adapters.desk import Go
from policy_server.adapters.protos import (
    DecodeError,
    HeaderValueOption,
    HttpHeaders,
    HttpTrailers,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    Struct,
    Value,
    wire,
)
from policy_server.adapters.rules import ClassifyRules

UID_KEY = "x-policy-uid"
"""The request's identity: a header, and gRPC metadata of the observer."""
BODY_NAMESPACE = "policy.request"
"""Dynamic metadata that json_to_metadata fills in front of the gate."""
ANSWER_NAMESPACE = "policy"
ATTRIBUTES = "envoy.filters.http.ext_proc"
UPSTREAM_ADDRESS = "upstream.address"
OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
OBSERVE_HEADER = "x-policy-observe"
ORCA_ASK = ("endpoint-load-metrics-format", "JSON")
ASKS = frozenset(
    f"x-{name}-{what}" for name in ("aqueduct", "aquifer") for what in ("rps", "max-concurrent")
)
"""Headers by which a back end asks for less."""
LOAD_REPORT_HEADERS = ASKS | {"endpoint-load-metrics", "endpoint-load-metrics-bin"}
TRAILERS = LOAD_REPORT_HEADERS | {grpc_status.HEADER}
"""What is read of an answer's trailers; a gRPC answer without a body has them as headers."""
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
HEAD_HEADERS = TRAILERS | {":status", "content-type"}
STREAM_TYPES = frozenset(
    {"text/event-stream", "application/x-ndjson", "application/vnd.amazon.eventstream"}
)
_UNSEEN = BodyFacts(read=False)
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
"""Texts that model servers take for true, as pydantic does."""


def parse(raw: bytes) -> ProcessingRequest | None:
    """The message, None when the bytes are none."""
    try:
        return ProcessingRequest.FromString(raw)
    except DecodeError:
        return None


class Asker(NamedTuple):
    """What is known of a call beside its message: the Envoy it comes from, whether that one can
    show the answer as it passes, and whether the request's age is of interest."""

    node: str
    observable: bool = True
    aged: bool = False


def facts_of(message: ProcessingRequest, rules: ClassifyRules, asker: Asker) -> Facts:
    """What classification needs of a request_headers message."""
    body, tenant = lifted(message.metadata_context.filter_metadata, rules)
    route, cluster = _routed(message.attributes.get(ATTRIBUTES)) if rules.routed else ("", "")
    return Facts(
        headers=headers_of(message.request_headers, rules.wanted_headers),
        body=body,
        tenant=tenant,
        route=route,
        cluster=cluster,
        node=asker.node,
        observable=asker.observable,
        taken_in=_taken_in(message) if asker.aged else 0.0,
    )


def _taken_in(message: ProcessingRequest) -> float:
    """When Envoy got the request, Unix seconds by its clock; 0 where it does not say."""
    try:
        return datetime.fromisoformat(attribute(message, "request.time")).timestamp()
    except ValueError:
        return 0.0


def lifted(metadata: Mapping[str, Struct], rules: ClassifyRules) -> tuple[BodyFacts, str]:
    """What Envoy's own filters found: fields of the body, and the tenant where the rules want."""
    body = metadata.get(BODY_NAMESPACE)
    source = rules.tenant.metadata
    tenant = _text_at(metadata.get(source[0]), source[1:]) if source else ""
    return (_body_facts(body) if body is not None else _UNSEEN), tenant


def headers_of(message: HttpHeaders | HttpTrailers, wanted: frozenset[str]) -> dict[str, str]:
    """The wanted headers; duplicates joined, bytes that are no UTF-8 replaced."""
    found: dict[str, str] = {}
    kept = message.trailers if isinstance(message, HttpTrailers) else message.headers
    for header in kept.headers:
        key = header.key
        if key in wanted:
            value = header.raw_value.decode("utf-8", "replace") or header.value
            found[key] = f"{found[key]}, {value}" if key in found else value
    return found


class AnswerHead(NamedTuple):
    """The beginning of an answer. `details` and `upstream` are "" where Envoy does not send them;
    `details` other than `via_upstream` = an answer that Envoy gives by itself. `streamed`: its type
    is one of streams."""

    status: int
    headers: Mapping[str, str]
    details: str = ""
    upstream: str = ""
    streamed: bool = False


def answer_head(message: ProcessingRequest) -> AnswerHead:
    """What a response_headers message says."""
    found = headers_of(message.response_headers, HEAD_HEADERS)
    status, kind = found.pop(":status", ""), found.pop("content-type", "")
    return AnswerHead(
        int(status) if status.isascii() and status.isdigit() else 0,
        found,
        attribute(message, "response.code_details"),
        attribute(message, UPSTREAM_ADDRESS),
        is_stream(kind),
    )


def is_stream(content_type: str) -> bool:
    """Whether answers of this type come piece by piece, as they are made."""
    return content_type.partition(";")[0].strip().lower() in STREAM_TYPES


def attribute(message: ProcessingRequest, name: str) -> str:
    """One of Envoy's attributes that are texts, "" when it was not sent."""
    return _text_at(message.attributes.get(ATTRIBUTES), (name,))


def _body_facts(body: Struct) -> BodyFacts:
    fields = body.fields
    model, stream = fields.get("model"), fields.get("stream")
    # The largest: engines differ in which one they obey, and the others may say anything.
    limits = [_number(fields[name]) for name in LENGTH_FIELDS if name in fields]
    return BodyFacts(
        model=model.string_value if model is not None else "",
        stream=stream is not None and _is_true(stream),
        max_tokens=max(limits, default=0.0),
        read=model is not None or "read" in fields,
        broken="unread" in fields,
    )


def _is_true(value: Value) -> bool:
    return (
        value.bool_value or value.number_value == 1 or value.string_value.strip().lower() in _TRUE
    )


def _number(value: Value) -> float:
    """Also from a text of digits, which model servers take as well."""
    text = value.string_value.strip()
    return float(text[:MAX_DIGITS]) if text.isascii() and text.isdigit() else value.number_value


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


class GateEncoder:
    """The gate's words: one answer, after which its stream is over."""

    def passed(self) -> bytes:
        """Go on, unobserved, no lease."""
        response = ProcessingResponse()
        mutation = response.request_headers.response.header_mutation
        mutation.set_headers.extend(_options({OBSERVE_HEADER: "0"}))
        return wire(response)

    def refused(self, answer: HttpAnswer) -> bytes:
        """Envoy answers the client itself."""
        response = ProcessingResponse()
        immediate = response.immediate_response
        immediate.status.code = answer.status
        immediate.headers.set_headers.extend(_options(dict(answer.headers)))
        immediate.body = answer.body
        immediate.details = answer.details
        if answer.grpc_status is not None:
            immediate.grpc_status.status = answer.grpc_status
        return wire(response)

    def admitted(self, go: Go) -> bytes:
        """Go on, with a lease."""
        return wire(_go(go))


class StreamEncoder(GateEncoder):
    """The single stream's words. An admission asks Envoy to keep the stream to the very end of
    the answer, where it lets itself be asked (`allow_mode_override`); elsewhere that is ignored."""

    def admitted(self, go: Go) -> bytes:
        """Go on, with a lease, and tell how it ends."""
        response = _go(go)
        response.mode_override.response_header_mode = ProcessingMode.SEND
        response.mode_override.response_trailer_mode = ProcessingMode.SEND
        return wire(response)


def _go(go: Go) -> ProcessingResponse:
    response = ProcessingResponse()
    headers = {OBSERVE_HEADER: "1" if go.observe else "0"}
    if go.ask_load:
        headers[ORCA_ASK[0]] = ORCA_ASK[1]
    mutation = response.request_headers.response.header_mutation
    mutation.set_headers.extend(_options(headers))
    policy = response.dynamic_metadata.fields[ANSWER_NAMESPACE].struct_value.fields
    policy["queue_wait_ms"].number_value = go.wait_ms
    policy["class"].string_value = go.priority.name
    policy["pool"].string_value = go.pool
    return response


def body_wanted() -> bytes:
    """Go on no further: the whole body first. Needs `allow_mode_override` in Envoy's filter."""
    response = ProcessingResponse()
    response.request_headers.SetInParent()
    response.mode_override.request_body_mode = ProcessingMode.BUFFERED
    response.mode_override.response_header_mode = ProcessingMode.SKIP
    response.mode_override.response_trailer_mode = ProcessingMode.SKIP
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
