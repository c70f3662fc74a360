"""The binary form of an ORCA report: `xds.data.orca.v3.OrcaLoadReport` on the protobuf wire.

Only the figures that this project knows are read, by a walk over the fields: a message is a list
of (number, type, payload), and `named_metrics` (8) and `utilization` (5) are maps, that is lists
of small messages {1: key, 2: double}. A test holds it equal to the generated class.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAPS = (5, 8)  # utilization, named_metrics
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def named_figures(message: bytes) -> dict[str, float]:
    """The named figures of a report. Raises ValueError when the bytes are no message."""
    figures: dict[str, float] = {}
    for number, payload in _fields(message):
        if number not in MAPS or not isinstance(payload, bytes):
            continue
        name, value = "", 0.0
        for part, content in _fields(payload):
            if part == 1 and isinstance(content, bytes):
                name = content.decode("utf-8", "replace")
            elif part == 2 and isinstance(content, float):
                value = content
        figures[name] = value
    return figures


def _fields(message: bytes) -> Iterator[tuple[int, bytes | float | int]]:
    """(field number, payload): bytes, a double, or a whole number."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError("not a protobuf message")
        payload = message[at : at + size]
        at += size
        yield tag >> 3, struct.unpack("<d", payload)[0] if kind == FIXED64 else payload


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(MAX_VARINT_BYTES):
        if at + index >= len(message):
            break
        byte = message[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("not a protobuf message")
