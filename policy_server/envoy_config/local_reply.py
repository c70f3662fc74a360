"""What Envoy itself answers: refused for an overload, without a policy server or a model server.

It looks like the policy server's own answers (status, Retry-After, the error object that the
path's clients expect), so that no client has to know who spoke. `x-policy-reason` is on refusals
of the gateway only: a model server that can't be reached is none. gRPC callers get Envoy's own
words there, in `grpc-message`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ExtensionFilter,
    HeaderFilter,
    ResponseFlagFilter,
)
from envoy_data_plane.envoy.config.core.v3 import SubstitutionFormatString
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any, Struct

from policy_server.envoy_config.wire import GRPC_TYPE, set_header

ANTHROPIC_PATH = "/v1/messages"
# The bucket in front of the gate is full again within a second.
OVERLOADED_RETRY_AFTER_S = 1
# So long may a connection to a model server take to be tried again; a body that is cut is gone.
UNREACHABLE_RETRY_AFTER_S = 5
NO_UPSTREAM_FLAGS = ["UH", "UF", "UO", "URX", "UC", "UR", "LR", "UPE", "DF", "NC"]
"""Response flags of answers that Envoy gives because no model server gave one."""
# A supervised policy server is back within one second, an orchestrated one within a few.
OUTAGE_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class FixedAnswer:
    """An answer as a mesh may give it that cannot tell the clients of one API from another's."""

    status: int
    headers: dict[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class _Answer:
    """One kind of local answer and the condition that picks it. No `retry_after_s`: to come back
    does not help. No `reason`: the gateway refused nothing."""

    when: AccessLogFilter
    status: int
    retry_after_s: int | None
    message: str
    openai_type: str
    openai_code: str | None
    anthropic_type: str
    reason: str = ""
    title: str = "Service Unavailable"
    detail: str = ""


def local_replies(shared: bool = False) -> LocalReplyConfig:
    """The answers of Envoy itself, Anthropic's shape on its path, OpenAI's elsewhere. `shared`:
    those of our filters only, since others' requests go through this Envoy as well."""
    mappers = []
    general = [] if shared else [_no_memory(), _unreachable(), _too_large()]
    for answer in (_overloaded(), _outage(), *general):
        on_anthropic = AccessLogFilter(
            and_filter=AndFilter(filters=[answer.when, _path_holds(ANTHROPIC_PATH)])
        )
        mappers += [
            _mapper(answer, on_anthropic, _anthropic_body(answer)),
            _mapper(answer, answer.when, _openai_body(answer)),
        ]
    return LocalReplyConfig(mappers=mappers)


def outage_answer() -> FixedAnswer:
    """What a client reads while there is no policy server, in OpenAI's shape."""
    answer = _outage()
    body = {**_openai_body(answer), "status": answer.status}
    return FixedAnswer(answer.status, _headers(answer), json.dumps(body))


def _overloaded() -> _Answer:
    """The local rate limit refused it."""
    return _Answer(
        when=_details('response.code_details == "local_rate_limited"'),
        status=429,
        retry_after_s=OVERLOADED_RETRY_AFTER_S,
        message="The gateway is overloaded. Please retry shortly.",
        openai_type="rate_limit_error",
        openai_code="rate_limit_exceeded",
        anthropic_type="rate_limit_error",
        reason="overloaded",
        title="Too Many Requests",
    )


def _outage() -> _Answer:
    """The gate failed closed. An answer of the policy server itself has other details."""
    return _Answer(
        when=_details(
            'response.code_details.startsWith("ext_proc_error") || '
            'response.code_details.startsWith("ext_authz_error")'
        ),
        status=503,
        retry_after_s=OUTAGE_RETRY_AFTER_S,
        message="The gateway cannot admit requests at the moment. Please retry shortly.",
        openai_type="server_error",
        openai_code="overloaded",
        anthropic_type="overloaded_error",
        reason="overloaded",
    )


def _no_memory() -> _Answer:
    """Envoy's heap is nearly full; see `overload`."""
    return _Answer(
        when=_to_http(_details('response.code_details == "overload"')),
        status=503,
        retry_after_s=OUTAGE_RETRY_AFTER_S,
        message="The gateway is out of memory at the moment. Please retry shortly.",
        openai_type="server_error",
        openai_code="overloaded",
        anthropic_type="overloaded_error",
        reason="overloaded",
    )


def _unreachable() -> _Answer:
    """No model server answered: away, refused, cut off, or more at once than the bounds allow."""
    flags = AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=NO_UPSTREAM_FLAGS))
    return _Answer(
        when=_to_http(flags),
        status=503,
        retry_after_s=UNREACHABLE_RETRY_AFTER_S,
        message="The model server did not answer. Please retry shortly.",
        openai_type="server_error",
        openai_code="service_unavailable",
        anthropic_type="api_error",
        detail="%LOCAL_REPLY_BODY%",
    )


def _too_large() -> _Answer:
    """More body than Envoy buffers."""
    return _Answer(
        when=_to_http(_details('response.code_details == "request_payload_too_large"')),
        status=413,
        retry_after_s=None,
        message="The body of the request is larger than this gateway takes.",
        openai_type="invalid_request_error",
        openai_code=None,
        anthropic_type="request_too_large",
        title="Content Too Large",
    )


def _details(expression: str) -> AccessLogFilter:
    """A condition on why the answer is what it is."""
    return AccessLogFilter(
        extension_filter=ExtensionFilter(
            name="envoy.access_loggers.extension_filters.cel",
            typed_config=Any.pack(ExpressionFilter(expression=expression)),
        )
    )


def _to_http(when: AccessLogFilter) -> AccessLogFilter:
    """The condition, for callers that do not speak gRPC."""
    grpc = HeaderMatcher(
        name="content-type",
        string_match=StringMatcher(prefix=GRPC_TYPE),
        invert_match=True,
        treat_missing_header_as_empty=True,  # or what has none would match nothing
    )
    other = AccessLogFilter(header_filter=HeaderFilter(header=grpc))
    return AccessLogFilter(and_filter=AndFilter(filters=[when, other]))


def _path_holds(part: str) -> AccessLogFilter:
    matcher = HeaderMatcher(name=":path", string_match=StringMatcher(contains=part))
    return AccessLogFilter(header_filter=HeaderFilter(header=matcher))


def _mapper(answer: _Answer, when: AccessLogFilter, body: dict[str, object]) -> ResponseMapper:
    return ResponseMapper(
        filter=when,
        status_code=answer.status,
        headers_to_add=[set_header(name, value) for name, value in _headers(answer).items()],
        body_format_override=SubstitutionFormatString(
            json_format=Struct.from_dict(body), content_type="application/json"
        ),
    )


def _headers(answer: _Answer) -> dict[str, str]:
    headers = {}
    if answer.retry_after_s is None:
        headers["x-should-retry"] = "false"
    else:
        headers["retry-after"] = str(answer.retry_after_s)
        headers["retry-after-ms"] = str(answer.retry_after_s * 1000)
    if answer.reason:
        headers["x-policy-reason"] = answer.reason
    if answer.status == 429:
        headers["x-envoy-ratelimited"] = "true"  # keeps a front Envoy from retrying at once
    return headers


def _openai_body(answer: _Answer) -> dict[str, object]:
    error = {
        "message": answer.message,
        "type": answer.openai_type,
        "param": None,
        "code": answer.openai_code,
    }
    kind = f"urn:envoy-policy-server:{answer.reason}" if answer.reason else "about:blank"
    return {"error": error, "type": kind, **_problem(answer)}


def _anthropic_body(answer: _Answer) -> dict[str, object]:
    error = {"type": answer.anthropic_type, "message": answer.message}
    return {"type": "error", "error": error, **_problem(answer)}


def _problem(answer: _Answer) -> dict[str, object]:
    """The members of RFC 9457 that do not clash with the error object."""
    status = "%RESPONSE_CODE%"  # a number of ours would come out as the string "429.0"
    return {"title": answer.title, "status": status, "detail": answer.detail or answer.message}
