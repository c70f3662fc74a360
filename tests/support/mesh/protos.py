"""Envoy's messages by protobuf's own reader, which refuses fields and types that do not exist."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

Plain = dict[str, Any]
M = TypeVar("M", bound=Message)


def parse(data: Plain, kind: type[M]) -> M:
    """The message; raises when anything in `data` is unknown to Envoy's API."""
    _load(data)
    message = kind()
    json_format.ParseDict(data, message)
    return message


def plain(message: Message) -> Plain:
    """The message as Envoy reads it from a file."""
    found: Plain = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def merge(into: Message, patch: Message) -> None:
    """As Istio's control plane merges: lists grow, maps and messages merge, durations and
    everything plain are replaced."""
    for field, value in patch.ListFields():
        if field.message_type is None:
            _merge_plain(into, field, value)
        elif field.message_type.GetOptions().map_entry:
            getattr(into, field.name).MergeFrom(value)
        elif field.is_repeated:
            getattr(into, field.name).extend(value)
        elif field.message_type.full_name == "google.protobuf.Duration":
            getattr(into, field.name).CopyFrom(value)
        else:
            getattr(into, field.name).SetInParent()
            merge(getattr(into, field.name), value)


def _merge_plain(into: Message, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(into, field.name).extend(value)
    else:
        setattr(into, field.name, value)


def _load(data: Any) -> None:
    """Import what the `@type`s in there are made of."""
    for url in _types(data):
        package = url.rpartition("/")[2].rpartition(".")[0]
        folder = importlib.import_module(package)
        for module in pkgutil.iter_modules(folder.__path__):
            if module.name.endswith("_pb2"):
                importlib.import_module(f"{package}.{module.name}")


def _types(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        if isinstance(data.get("@type"), str):
            yield data["@type"]
        for inner in data.values():
            yield from _types(inner)
    elif isinstance(data, list):
        for inner in data:
            yield from _types(inner)
