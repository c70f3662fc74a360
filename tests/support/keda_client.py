"""A client of KEDA's external scaler made from its field numbers alone (KEDA 2.20), so that a
mistake in our own description of the messages can't hide in its own mirror."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

import grpc

SERVICE = "/externalscaler.ExternalScaler/"
LENGTH, VARINT, FIXED64 = 2, 0, 1


class Metric(NamedTuple):
    """`MetricSpec` and `MetricValue` have the same shape: name 1, whole number 2, float 3."""

    name: str
    whole: int
    exact: float

    @property
    def value(self) -> float:
        """What KEDA takes: the float when it is above 0, else the whole number."""
        return self.exact if self.exact > 0 else float(self.whole)


class KedaClient:
    """Asks as KEDA does for one trigger."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Mapping[str, str]) -> None:
        self._channel = channel
        entries = [_text(1, key) + _text(2, value) for key, value in metadata.items()]
        self._ref = _text(1, "model") + _text(2, "llm") + b"".join(_bytes(3, e) for e in entries)

    async def is_active(self) -> bool:
        """IsActive."""
        return _active(await self._channel.unary_unary(SERVICE + "IsActive")(self._ref, timeout=20))

    async def stream_is_active(self) -> AsyncIterator[bool]:
        """StreamIsActive."""
        async for raw in self._channel.unary_stream(SERVICE + "StreamIsActive")(self._ref):
            yield _active(raw)

    async def metric_spec(self) -> Metric:
        """GetMetricSpec."""
        ask = self._channel.unary_unary(SERVICE + "GetMetricSpec")
        return _metric(await ask(self._ref, timeout=20))

    async def metric(self, name: str) -> Metric:
        """GetMetrics."""
        ask = self._channel.unary_unary(SERVICE + "GetMetrics")
        return _metric(await ask(_bytes(1, self._ref) + _text(2, name), timeout=20))

    async def call(self, method: str, raw: bytes) -> bytes:
        """Anything else."""
        answer: bytes = await self._channel.unary_unary(SERVICE + method)(raw, timeout=20)
        return answer


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | LENGTH) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _fields(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = raw[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(raw):
        key = varint()
        if key & 7 == VARINT:
            yield key >> 3, varint()
            continue
        size = 8 if key & 7 == FIXED64 else varint()
        yield key >> 3, raw[at : at + size]
        at += size


def _active(raw: bytes) -> bool:
    return dict(_fields(raw)).get(1) == 1


def _metric(raw: bytes) -> Metric:
    ((number, inner),) = _fields(raw)
    assert number == 1
    assert isinstance(inner, bytes)
    found = dict(_fields(inner))
    name, exact = found.get(1, b""), found.get(3, bytes(8))
    assert isinstance(name, bytes)
    assert isinstance(exact, bytes)
    whole = found.get(2, 0)
    assert isinstance(whole, int)
    return Metric(name.decode(), whole, struct.unpack("<d", exact)[0])
