"""Envoy's messages as plain data with Envoy's own field names, and plain data as YAML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any as JsonValue

import betterproto2
import yaml
from envoy_data_plane.google.protobuf import Any

Document = dict[str, JsonValue]


def plain(message: betterproto2.Message) -> Document:
    """One message as the data that Envoy reads."""
    data = message.to_dict(casing=betterproto2.Casing.SNAKE)
    return {key: _repaired(value) for key, value in data.items()}


def plain_any(message: betterproto2.Message) -> Document:
    """The same with its type beside it, as a `typed_config` holds it."""
    data: Document = _repaired(Any.pack(message).to_dict(casing=betterproto2.Casing.SNAKE))
    return data


def to_yaml(data: JsonValue, header: str = "") -> str:
    """The data as YAML, under a comment."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    # through JSON, so that no shared object becomes a YAML anchor
    return comment + yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False, width=100)


def to_yaml_stream(documents: Iterable[JsonValue], header: str = "") -> str:
    """Several documents in one file, the comment on top."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + "---\n".join(to_yaml(document) for document in documents)


def _repaired(value: JsonValue) -> JsonValue:
    """Repairs what Envoy's JSON reader refuses: the empty `@type` of an empty Any, and
    `consecutive_5_xx`, which is the library's idea of `consecutive_5xx` in snake case."""
    if isinstance(value, dict):
        pairs = ((key.replace("_5_xx", "_5xx"), inner) for key, inner in value.items())
        return {key: _repaired(inner) for key, inner in pairs if (key, inner) != ("@type", "")}
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    return value
