"""The kinds of values a configuration holds, each with a message that says how to write it."""

from __future__ import annotations

import binascii
import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_RETRY_AFTER_S = 55  # client SDKs ignore a Retry-After above 60 s; jitter stays below it
MIN_SECRET_BYTES = 16  # of a webhook's signing secret
MIN_TOKEN_CHARS = 16  # of an admin token: shorter ones can be guessed over a network
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_TENANT_SOURCE = re.compile(r"header:[!#$%&'*+.^_`|~0-9A-Za-z-]+|metadata:[^/\s]+/\S+|api_key_hash")
_WEBHOOK_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")


def split_host_port(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair; ValueError when it has another shape."""
    host, separator, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r} is not host:port; write IPv6 as [::1]:9002")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not (separator and host and digits and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not host:port; write for example 127.0.0.1:9002")
    return host, int(port)


def host_port(value: str) -> str:
    """The value itself when it is host:port."""
    split_host_port(value)
    return value


def url(value: str) -> str:
    """The value itself when it is an http(s) URL."""
    if not _URL.fullmatch(value):
        raise ValueError(f"{value!r} is not a URL; write for example http://127.0.0.1:8000")
    return value


def absolute_path(path: str) -> str:
    """The value itself when it is the path of a URL."""
    if not path.startswith("/"):
        raise ValueError(f"{path!r} does not start with /; write for example /{path}")
    return path


def label(value: str) -> str:
    """The value itself when it may be the value of a metric label and part of a file name."""
    if not _LABEL.fullmatch(value):
        raise ValueError(f"{value!r} is no name; use letters, digits, '.', '_' and '-'")
    return value


_SECRETS = frozenset(
    f"header:{name}"
    for name in (
        *("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"),
        *("x-goog-api-key", "ocp-apim-subscription-key"),
    )
)


def tenant_source(value: str) -> str:
    """The value itself when it says where a tenant's name comes from."""
    if not _TENANT_SOURCE.fullmatch(value):
        raise ValueError(
            f"{value!r} names no source; write header:NAME, metadata:NAMESPACE/KEY or api_key_hash"
        )
    if value.lower() in _SECRETS:
        raise ValueError(f"{value!r} is a secret, which would be shown as a name: use api_key_hash")
    return value


def webhook_host(value: str) -> str:
    """The value itself when it is a host name, `*.` and a host name, or a network."""
    if not _WEBHOOK_HOST.fullmatch(value):
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError:
            raise ValueError(
                f"{value!r} is no host or network; write for example hooks.example.com, "
                "*.example.com or 10.1.0.0/16"
            ) from None
    return value


def webhook_secret(value: str) -> str:
    """The value itself when it can sign; never in a message."""
    try:
        key = binascii.a2b_base64(value.removeprefix("whsec_"), strict_mode=True)
    except ValueError:
        key = b""
    if len(key) < MIN_SECRET_BYTES:
        raise ValueError(
            f"is no whsec_ and base64 of at least {MIN_SECRET_BYTES} bytes; "
            'make one: echo "whsec_$(head -c 24 /dev/urandom | base64)"'
        )
    return value


def _as_text(value: Any) -> Any:
    """Numbers become text, so that `grpc: 9002` is told how a host:port looks."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ClassName = Literal["P0", "P1", "P2"]
Address = Annotated[str, BeforeValidator(_as_text), AfterValidator(host_port)]
Url = Annotated[str, AfterValidator(url)]
Seconds = Annotated[float, Field(gt=0, le=7 * 86400)]
# Envoy takes no message_timeout above an hour, and the gate's must be above the longest hold.
HoldSeconds = Annotated[float, Field(gt=0, le=3500)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Base of every section: immutable, no unknown keys, no NaN; left empty = all defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, data: object) -> object:
        return {} if data is None else data
