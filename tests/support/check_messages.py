"""Checks as Envoy sends them."""

from __future__ import annotations

from collections.abc import Mapping

from envoy.service.auth.v3.external_auth_pb2 import CheckRequest

from tests.support.ext_proc_messages import CHAT


def check_request(
    uid: str = "uid-1",
    headers: Mapping[str, str] | None = None,
    metadata: Mapping[str, Mapping[str, object]] | None = None,
    request_id: str = "4711",
    stamped: bool = True,
) -> CheckRequest:
    """One request, asked about; `stamped`: by an Envoy that overwrites `x-policy-uid`."""
    message = CheckRequest()
    http = message.attributes.request.http
    http.id = request_id
    if stamped:
        message.attributes.context_extensions["stamped"] = "x-policy-uid"
    for key, value in {**CHAT, **({"x-policy-uid": uid} if uid else {}), **(headers or {})}.items():
        http.headers[key] = value
    for namespace, fields in (metadata or {}).items():
        message.attributes.metadata_context.filter_metadata[namespace].update(fields)
    return message
