"""The protobuf messages in use, imported in one place.

Their modules build the classes at import time and ship no type hints, so they are untyped here
and nowhere else: the functions around them say what goes in and what comes out.
"""

from __future__ import annotations

from envoy.config.core.v3.base_pb2 import HeaderValueOption  # type: ignore[attr-defined]
from envoy.data.accesslog.v3.accesslog_pb2 import (  # type: ignore[attr-defined]
    AccessLogCommon,
    DownstreamEnd,
    DownstreamPeriodic,
    HTTPAccessLogEntry,
    NotSet,
)
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import (  # type: ignore[attr-defined]
    ProcessingMode,
)
from envoy.service.accesslog.v3.als_pb2 import (  # type: ignore[attr-defined]
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
)
from envoy.service.auth.v3.external_auth_pb2 import (  # type: ignore[attr-defined]
    CheckRequest,
    CheckResponse,
)
from envoy.service.ext_proc.v3.external_processor_pb2 import (  # type: ignore[attr-defined]
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct, Value

__all__ = [
    "AccessLogCommon",
    "CheckRequest",
    "CheckResponse",
    "DecodeError",
    "Descriptor",
    "DownstreamEnd",
    "DownstreamPeriodic",
    "Duration",
    "FieldDescriptor",
    "HTTPAccessLogEntry",
    "HeaderValueOption",
    "HttpHeaders",
    "HttpTrailers",
    "Message",
    "NotSet",
    "ProcessingMode",
    "ProcessingRequest",
    "ProcessingResponse",
    "StreamAccessLogsMessage",
    "StreamAccessLogsResponse",
    "Struct",
    "Value",
    "wire",
]


def wire(message: Message) -> bytes:
    """The serialized message."""
    return message.SerializeToString()
