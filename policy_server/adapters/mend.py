"""Messages that carry a client's bytes where protobuf wants UTF-8 text.

Envoy writes some of what clients send into `string` fields as it came: `x-request-id` may hold any
byte, and so may an engine's headers. protobuf then refuses the whole message, in the access log
that is every lease that ended within the same 50 ms. Here the bytes that are no text become `?`,
one for one, so that no length changes, and the rest of the message is read as it is. Only messages
that were refused come this way.
"""

from __future__ import annotations

import re

from policy_server.adapters.protos import DecodeError, Descriptor, FieldDescriptor

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_DEPTH = 100
"""protobuf's own bound on nesting."""
MAX_VARINT_BYTES = 10
_NO_TEXT = re.compile("[\udc80-\udcff]")


def mended(raw: bytes, kind: Descriptor) -> bytes:
    """The message with `?` for every byte that is not text. DecodeError when it is no message."""
    data = bytearray(raw)
    _mend(data, 0, len(data), kind, 0)
    return bytes(data)


def _mend(data: bytearray, at: int, end: int, kind: Descriptor, depth: int) -> None:
    while at < end:
        tag, at = _varint(data, at, end)
        wire_type = tag & 7
        if wire_type == VARINT:
            _, at = _varint(data, at, end)
        elif wire_type == LENGTH:
            size, at = _varint(data, at, end)
            if size > end - at or depth > MAX_DEPTH:
                raise DecodeError("not a message")
            _mend_field(data, at, at + size, kind.fields_by_number.get(tag >> 3), depth)
            at += size
        elif wire_type in {FIXED32, FIXED64}:
            at += 4 if wire_type == FIXED32 else 8
        else:
            raise DecodeError("not a message")


def _mend_field(
    data: bytearray, at: int, end: int, field: FieldDescriptor | None, depth: int
) -> None:
    if field is None:
        return
    if field.type == FieldDescriptor.TYPE_STRING:
        text = data[at:end].decode(errors="surrogateescape")
        data[at:end] = _NO_TEXT.sub("?", text).encode()
    elif field.message_type is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
        _mend(data, at, end, field.message_type, depth + 1)


def _varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(min(MAX_VARINT_BYTES, end - at)):
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise DecodeError("not a message")
