"""What a refused client is told: status, headers and body, in the shape that its SDK expects.

Pure; ext_proc and ext_authz encode the same `HttpAnswer`. OpenAI's error object by default,
Anthropic's on `/v1/messages`, each with the members of RFC 9457 beside it (Anthropic's `type` is
fixed to "error", which there stands for the RFC's `type`); plain text for gRPC callers, because
Envoy turns the body into `grpc-message`.

Of the rate-limit fields only `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11) is sent, on
429: nothing more now, ask again in t seconds. `RateLimit-Policy` and the `x-ratelimit-*` of the
providers would promise so much per minute or so many at once to one client; no such number exists,
the limit is learned and shared. gRPC callers get none: the draft forbids it in trailers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason

MAX_RETRY_AFTER_MS = 55_000
"""Some SDKs ignore a Retry-After above 60 s; 55 leaves room for their rounding."""
OVERLOADED_RETRY_S = (2, 3, 4, 5, 6, 7, 8)
"""A lag passes within a second or two; the spread is for what comes back afterwards."""
GRPC_RESOURCE_EXHAUSTED = 8
GRPC_UNAVAILABLE = 14

TENANT_SHARE, GATEWAY = "tenant", "gateway"
"""Names in `RateLimit` of what is no pool."""
_OWN_DOING = frozenset({ShedReason.TENANT_LIMIT, ShedReason.RETRY_BUDGET})

_WHAT = {
    ShedReason.ROOM_FULL: "All model servers are busy and the waiting room is full.",
    ShedReason.PREDICTED_WAIT: (
        "All model servers are busy and this request would wait longer than it may."
    ),
    ShedReason.DEADLINE: (
        "This request waited as long as it may and no model server was free in time."
    ),
    ShedReason.DISPLACED: "More important requests took this request's place in the waiting room.",
    ShedReason.TENANT_LIMIT: "Too many requests of this tenant are waiting already.",
    ShedReason.RETRY_BUDGET: (
        "All model servers are busy and this tenant retries more often than it was told to."
    ),
    ShedReason.NO_BACKEND: "No model server is available.",
    ShedReason.DRAINING: "The gateway is shutting down.",
    ShedReason.JOURNAL_UNAVAILABLE: "The gateway cannot store requests at the moment.",
    ShedReason.OVERLOADED: "The gateway itself is overloaded.",
}


class Dialect(Enum):
    """Whose error object the client understands."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete refusal. `grpc_status` is for gRPC callers only.

    `details` shows up as response_code_details in Envoy's access log.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str
    grpc_status: int | None = None


def dialect_of(path: str, content_type: str) -> Dialect:
    """The error shape for the callers of this path."""
    if content_type[:16].lower() == "application/grpc":
        return Dialect.GRPC
    return Dialect.ANTHROPIC if "/v1/messages" in path else Dialect.OPENAI


class _Refusal(NamedTuple):
    """What the client is told. `limit` names what is used up; `ticket` "" = none."""

    reason: ShedReason
    retry_after_ms: int
    limit: str
    should_retry: bool = True
    ticket: str = ""

    @property
    def status(self) -> int:
        return 429 if self.reason.capacity_exists else 503

    @property
    def retry_after_s(self) -> int:
        return math.ceil(self.retry_after_ms / 1000)


def shed_answer(shed: Shed, dialect: Dialect, ticket: str = "") -> HttpAnswer:
    """The answer that tells `shed`: why, when to come back, and the place kept until then."""
    retry_after_ms = min(max(1, round(shed.retry_after_s * 1000)), MAX_RETRY_AFTER_MS)
    limit = TENANT_SHARE if shed.reason in _OWN_DOING else shed.request.pool
    refusal = _Refusal(shed.reason, retry_after_ms, limit, shed.should_retry, ticket)
    return _answer(refusal, dialect)


def overloaded_answers(dialect: Dialect) -> list[HttpAnswer]:
    """What the lower classes get while the policy server itself lags.

    A few, each with another Retry-After, to be built once and sent in turn: it costs nothing and
    the clients don't all come back in the same second.
    """
    return [
        _answer(_Refusal(ShedReason.OVERLOADED, seconds * 1000, GATEWAY), dialect)
        for seconds in OVERLOADED_RETRY_S
    ]


def _answer(refusal: _Refusal, dialect: Dialect) -> HttpAnswer:
    reason, status = refusal.reason, refusal.status
    message, details = _message(refusal), f"policy_{reason.value}"
    headers = _headers(refusal)
    if dialect is Dialect.GRPC:
        headers.append(("grpc-retry-pushback-ms", _pushback(refusal)))
        code = GRPC_RESOURCE_EXHAUSTED if status == 429 else GRPC_UNAVAILABLE
        return HttpAnswer(status, tuple(headers), message.encode(), details, code)
    if status == 429:
        headers.append(("ratelimit", f'"{refusal.limit}";r=0;t={refusal.retry_after_s}'))
    headers.append(("content-type", "application/json"))
    return HttpAnswer(status, tuple(headers), _body(dialect, status, reason, message), details)


def _headers(refusal: _Refusal) -> list[tuple[str, str]]:
    """Those that every caller gets."""
    headers = [
        ("retry-after", str(refusal.retry_after_s)),
        ("retry-after-ms", str(refusal.retry_after_ms)),
        ("x-policy-reason", refusal.reason.value),
    ]
    if refusal.status == 429:  # keeps a proxy in front from retrying at once
        headers.append(("x-envoy-ratelimited", "true"))
    if not refusal.should_retry:
        headers.append(("x-should-retry", "false"))
    if refusal.ticket:
        headers.append(("x-queue-ticket", refusal.ticket))
    return headers


def _pushback(refusal: _Refusal) -> str:
    """gRPC's retry policy (gRFC A6): wait so long; below 0 = don't retry."""
    return str(refusal.retry_after_ms) if refusal.should_retry else "-1"


def _message(refusal: _Refusal) -> str:
    unit = "second" if refusal.retry_after_s == 1 else "seconds"
    return f"{_WHAT[refusal.reason]} Please try again in {refusal.retry_after_s} {unit}."


def _body(dialect: Dialect, status: int, reason: ShedReason, message: str) -> bytes:
    contended = status == 429
    problem = {
        "title": "Too Many Requests" if contended else "Service Unavailable",
        "status": status,
        "detail": message,
    }
    if dialect is Dialect.ANTHROPIC:
        kind = "rate_limit_error" if contended else "overloaded_error"
        error: dict[str, object] = {"type": kind, "message": message}
        return json.dumps({"type": "error", "error": error, **problem}).encode()
    error = {
        "message": message,
        "type": "rate_limit_error" if contended else "server_error",
        "param": None,
        "code": "rate_limit_exceeded" if contended else "overloaded",
    }
    kind = f"urn:envoy-policy-server:{reason.value}"
    return json.dumps({"error": error, "type": kind, **problem}).encode()
