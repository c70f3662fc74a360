"""ext_authz on the wire: Check requests to plain facts, decisions to serialized CheckResponses.

Two traps of the protocol: `denied_response` is an allow while `status.code` is 0, and header
values go into `value` here (ext_proc wants `raw_value`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from policy_server.adapters.answers import (
    GRPC_RESOURCE_EXHAUSTED,
    GRPC_UNAVAILABLE,
    HttpAnswer,
)
from policy_server.adapters.classify import Facts
from policy_server.adapters.desk import Go
from policy_server.adapters.ext_proc_messages import (
    ANSWER_NAMESPACE,
    BODY_NAMESPACE,
    ORCA_ASK,
    OVERWRITE,
    UID_KEY,
    lifted,
)
from policy_server.adapters.protos import (
    CheckRequest,
    CheckResponse,
    DecodeError,
    HeaderValueOption,
    wire,
)
from policy_server.adapters.rules import ClassifyRules

ROUTE_KEY, CLUSTER_KEY = "route", "cluster"
STAMPED_KEY = "stamped"
"""Context extensions in which Envoy's configuration names route and cluster, and the header that
it overwrites with the request's identity."""
ANSWER_MARGIN = 0.2
"""Share of the caller's deadline kept for the answer's way back, at most ANSWER_MARGIN_S."""
ANSWER_MARGIN_S = 0.25


def parse_check(raw: bytes) -> CheckRequest | None:
    """The message, None when the bytes are none."""
    try:
        return CheckRequest.FromString(raw)
    except DecodeError:
        return None


def time_left_s(deadline_in_s: float | None) -> float:
    """For how long a request may wait whose caller gives up in so many seconds."""
    if deadline_in_s is None or not math.isfinite(deadline_in_s):
        return math.inf
    return max(0.0, deadline_in_s - min(ANSWER_MARGIN * deadline_in_s, ANSWER_MARGIN_S))


def facts_of_check(
    message: CheckRequest, rules: ClassifyRules, node: str, left_s: float = math.inf
) -> Facts:
    """What classification needs of a Check.

    Where Envoy does not vouch for `x-policy-uid`, its own id of the request takes its place: it is
    the same when the Check is sent again, and no client chooses it.
    """
    attributes = message.attributes
    http = attributes.request.http
    sent = http.headers
    headers = {name: sent[name] for name in rules.wanted_headers if name in sent}
    headers[UID_KEY] = _uid(message, headers.get(UID_KEY, ""))
    body, tenant = lifted(attributes.metadata_context.filter_metadata, rules)
    extensions = attributes.context_extensions
    return Facts(
        headers=headers,
        body=body,
        tenant=tenant,
        route=extensions.get(ROUTE_KEY, ""),
        cluster=extensions.get(CLUSTER_KEY, ""),
        node=node,
        time_left_s=left_s,
        observable=False,  # this wiring has no observer
    )


def log_knows(message: CheckRequest) -> bool:
    """Whether Envoy's own metadata names the request, so that its log entry will, too. Otherwise
    the answer has to: what a Check answers stays with the request to its log entry."""
    facts = message.attributes.metadata_context.filter_metadata
    return BODY_NAMESPACE in facts and "uid" in facts[BODY_NAMESPACE].fields


def _uid(message: CheckRequest, header: str) -> str:
    """The request's identity. A header that anybody may send is none: requests that share a lease
    would all go at once."""
    if log_knows(message):
        facts = message.attributes.metadata_context.filter_metadata
        return str(facts[BODY_NAMESPACE].fields["uid"].string_value)
    stamped = message.attributes.context_extensions.get(STAMPED_KEY, "") == UID_KEY
    return header if stamped and header else str(message.attributes.request.http.id)


def content_of_check(message: CheckRequest) -> tuple[list[tuple[str, str]], bytes]:
    """All headers, duplicates joined, and the body in bytes. As text it is of no use: Envoy then
    replaces what is no UTF-8."""
    http = message.attributes.request.http
    headers = list(http.headers.items())
    known = {":method": http.method, ":path": http.path, ":authority": http.host}
    headers += [(name, value) for name, value in known.items() if name not in http.headers]
    return headers, http.raw_body


def taken_in(message: CheckRequest) -> float:
    """When Envoy got the request, Unix seconds by its clock; 0 where it does not say."""
    time = message.attributes.request.time
    return float(time.seconds + time.nanos * 1e-9)


class CheckEncoder:
    """The words of a Check. A refusal is an answer, never a gRPC error."""

    def passed(self) -> bytes:
        """Go on, no lease."""
        response = CheckResponse()
        response.ok_response.SetInParent()
        return wire(response)

    def refused(self, answer: HttpAnswer) -> bytes:
        """Envoy answers the client itself."""
        headers = dict(answer.headers)
        if answer.grpc_status is not None:
            headers["grpc-status"] = str(answer.grpc_status)
        response = CheckResponse()
        contended = answer.status == 429
        response.status.code = GRPC_RESOURCE_EXHAUSTED if contended else GRPC_UNAVAILABLE
        denied = response.denied_response
        denied.status.code = answer.status
        denied.headers.extend(_options(headers))
        denied.body = answer.body.decode()
        return wire(response)

    def admitted(self, go: Go) -> bytes:
        """Go on, with a lease. What the client is told is set here as well, for Envoys whose
        routes do not make it from the metadata."""
        response = CheckResponse()
        ok = response.ok_response
        if go.ask_load:
            ok.headers.extend(_options({ORCA_ASK[0]: ORCA_ASK[1]}))
        told = {"x-policy-class": go.priority.name, "x-queue-wait-ms": str(go.wait_ms)}
        ok.response_headers_to_add.extend(_options(told))
        policy = response.dynamic_metadata.fields[ANSWER_NAMESPACE].struct_value.fields
        policy["queue_wait_ms"].number_value = go.wait_ms
        policy["class"].string_value = go.priority.name
        policy["pool"].string_value = go.pool
        if go.uid:
            policy["uid"].string_value = go.uid
        return wire(response)


def _options(headers: Mapping[str, str]) -> list[HeaderValueOption]:
    options = []
    for key, value in headers.items():
        option = HeaderValueOption(append_action=OVERWRITE)
        option.header.key, option.header.value = key, value
        options.append(option)
    return options
