"""Messages as Envoy sends them."""

from __future__ import annotations

from collections.abc import Mapping

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

CHAT = {
    ":method": "POST",
    ":path": "/v1/chat/completions",
    ":authority": "api.example.com",
    "content-type": "application/json",
    "content-length": "812",
}


def request_headers(
    uid: str = "uid-1",
    headers: Mapping[str, str] | None = None,
    metadata: Mapping[str, Mapping[str, object]] | None = None,
) -> ProcessingRequest:
    """The gate's one message."""
    message = ProcessingRequest()
    for key, value in {**CHAT, "x-policy-uid": uid, **(headers or {})}.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    for namespace, fields in (metadata or {}).items():
        message.metadata_context.filter_metadata[namespace].update(fields)
    return message


def response_headers(
    status: str = "200", content_type: str = "text/event-stream", *, observed: bool = True
) -> ProcessingRequest:
    """The observer's first message, or Envoy's own reply during a hold."""
    message = ProcessingRequest(observability_mode=observed)
    for key, value in {":status": status, "content-type": content_type}.items():
        message.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    return message


def response_body(body: bytes, *, last: bool = False) -> ProcessingRequest:
    """A chunk of an observed answer."""
    message = ProcessingRequest(observability_mode=True)
    message.response_body.body = body
    message.response_body.end_of_stream = last
    return message


def response_trailers() -> ProcessingRequest:
    """The end of an observed answer with trailers."""
    message = ProcessingRequest(observability_mode=True)
    message.response_trailers.trailers.SetInParent()
    return message
