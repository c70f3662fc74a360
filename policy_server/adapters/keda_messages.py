"""KEDA's messages, from bytes and to bytes. `protos/externalscaler.proto` is the same in words.

The descriptors are built here rather than by protoc, whose output is tied to one version of the
protobuf runtime; a test holds them equal to what protoc makes of that file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

FILE = "externalscaler.proto"
PACKAGE = "externalscaler"
SERVICE = "externalscaler.ExternalScaler"

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int64": _Field.TYPE_INT64,
    "double": _Field.TYPE_DOUBLE,
}
_MAP = "ScaledObjectRef.ScalerMetadataEntry"
_MESSAGES = {
    "ScaledObjectRef": ("name string", "namespace string", f"scalerMetadata *{_MAP}"),
    "IsActiveResponse": ("result bool",),
    "GetMetricSpecResponse": ("metricSpecs *MetricSpec",),
    "MetricSpec": ("metricName string", "targetSize int64", "targetSizeFloat double"),
    "GetMetricsRequest": ("scaledObjectRef ScaledObjectRef", "metricName string"),
    "GetMetricsResponse": ("metricValues *MetricValue",),
    "MetricValue": ("metricName string", "metricValue int64", "metricValueFloat double"),
}
"""Fields in the order of their numbers; `*` = repeated."""
_METHODS = (
    ("IsActive", "ScaledObjectRef", "IsActiveResponse"),
    ("StreamIsActive", "ScaledObjectRef", "*IsActiveResponse"),
    ("GetMetricSpec", "ScaledObjectRef", "GetMetricSpecResponse"),
    ("GetMetrics", "GetMetricsRequest", "GetMetricsResponse"),
)


@dataclass(frozen=True, slots=True)
class Ref:
    """Who asks, and the trigger's metadata as written in its YAML."""

    name: str
    namespace: str
    metadata: Mapping[str, str]


def read_ref(raw: bytes) -> Ref | None:
    """A `ScaledObjectRef`; None when the bytes are none."""
    try:
        return _ref(_class("ScaledObjectRef").FromString(raw))
    except DecodeError:
        return None


def read_metrics_request(raw: bytes) -> tuple[Ref, str] | None:
    """A `GetMetricsRequest`: who asks, for which metric; None when the bytes are none."""
    try:
        message = _class("GetMetricsRequest").FromString(raw)
    except DecodeError:
        return None
    return _ref(message.scaledObjectRef), str(message.metricName)


def active_answer(active: bool) -> bytes:
    """An `IsActiveResponse`."""
    return _wire("IsActiveResponse", result=active)


def spec_answer(metric: str, target: float) -> bytes:
    """A `GetMetricSpecResponse` with one metric."""
    spec = {
        "metricName": metric,
        "targetSize": max(1, round(target)),
        "targetSizeFloat": target,
    }
    return _wire("GetMetricSpecResponse", metricSpecs=[spec])


def value_answer(metric: str, value: float) -> bytes:
    """A `GetMetricsResponse` with one value."""
    answer = {
        "metricName": metric,
        "metricValue": math.ceil(value),
        "metricValueFloat": value,
    }
    return _wire("GetMetricsResponse", metricValues=[answer])


def _ref(message: Any) -> Ref:
    return Ref(message.name, message.namespace, dict(message.scalerMetadata))


def _wire(name: str, **fields: object) -> bytes:
    raw: bytes = _class(name)(**fields).SerializeToString()
    return raw


@cache
def _class(name: str) -> Any:
    descriptor = register().FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


@cache
def register() -> descriptor_pool.DescriptorPool:
    """The descriptors in protobuf's own pool, where gRPC reflection finds them too."""
    pool = descriptor_pool.Default()
    pool.Add(file_descriptor())
    return pool


def file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """What protoc makes of the file."""
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    for name, lines in _MESSAGES.items():
        _add_fields(file.message_type.add(name=name), lines)
    entry = file.message_type[0].nested_type.add(name=_MAP.partition(".")[2])
    _add_fields(entry, ("key string", "value string"))
    entry.options.map_entry = True
    service = file.service.add(name=SERVICE.partition(".")[2])
    for name, takes, gives in _METHODS:
        method = service.method.add(name=name, input_type=f".{PACKAGE}.{takes}")
        method.output_type = f".{PACKAGE}.{gives.lstrip('*')}"
        if gives.startswith("*"):
            method.server_streaming = True
    return file


def _add_fields(message: descriptor_pb2.DescriptorProto, lines: tuple[str, ...]) -> None:
    for number, line in enumerate(lines, start=1):
        name, kind = line.split()
        repeated = kind.startswith("*")
        field = message.field.add(name=name, number=number, json_name=name)
        field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        kind = kind.lstrip("*")
        if kind in _KINDS:
            field.type = _KINDS[kind]
        else:
            field.type = _Field.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{kind}"
