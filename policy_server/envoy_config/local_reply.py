"""What Envoy itself answers when the policy server cannot: refused for its overload, or gone.

Both look like the policy server's own answers (status, Retry-After, reason, the error object that
the path's clients expect), so that no client has to know who spoke.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ExtensionFilter,
    HeaderFilter,
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

from policy_server.envoy_config.wire import set_header

ANTHROPIC_PATH = "/v1/messages"
# The bucket in front of the gate is full again within a second.
OVERLOADED_RETRY_AFTER_S = 1
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
    """One kind of local answer and the condition that picks it."""

    when: AccessLogFilter
    status: int
    retry_after_s: int
    message: str
    openai_type: str
    openai_code: str
    anthropic_type: str


def local_replies() -> LocalReplyConfig:
    """The answers of Envoy itself, Anthropic's shape on its path, OpenAI's elsewhere."""
    mappers = []
    for answer in (_overloaded(), _outage()):
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
    )


def _details(expression: str) -> AccessLogFilter:
    """A condition on why the answer is what it is."""
    return AccessLogFilter(
        extension_filter=ExtensionFilter(
            name="envoy.access_loggers.extension_filters.cel",
            typed_config=Any.pack(ExpressionFilter(expression=expression)),
        )
    )


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
    headers = {
        "retry-after": str(answer.retry_after_s),
        "retry-after-ms": str(answer.retry_after_s * 1000),
        "x-policy-reason": "overloaded",
    }
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
    return {"error": error, "type": "urn:envoy-policy-server:overloaded", **_problem(answer)}


def _anthropic_body(answer: _Answer) -> dict[str, object]:
    error = {"type": answer.anthropic_type, "message": answer.message}
    return {"type": "error", "error": error, **_problem(answer)}


def _problem(answer: _Answer) -> dict[str, object]:
    """The members of RFC 9457 that do not clash with the error object."""
    title = "Too Many Requests" if answer.status == 429 else "Service Unavailable"
    status = "%RESPONSE_CODE%"  # a number of ours would come out as the string "429.0"
    return {"title": title, "status": status, "detail": answer.message}
