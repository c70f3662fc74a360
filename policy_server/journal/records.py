"""What the journal keeps, as JSON, and back. Fields may be added; a reader fills what is missing
with defaults and leaves out what it does not know. None for what is no such record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from policy_server.core.request import Kind, Priority, Request
from policy_server.journal.port import Held, Place, RequestContext, Turn

T = TypeVar("T")

_FIELDS = tuple(field.name for field in fields(Request) if field.name not in ("priority", "kind"))
_LEASE_FIELDS = ("uid", "pool", "tenant", "seats", "node", "streamed")
_DEFAULTS = {field.name: field.default for field in fields(Request)}


def place_to_json(place: Place) -> str:
    """One line of JSON. ValueError when a field can't be written so that it can be read."""
    request = place.request
    record = {n: v for n in _FIELDS if (v := getattr(request, n)) != _DEFAULTS[n]}
    record["priority"] = int(request.priority)
    if request.kind is not Kind.HELD:
        record["kind"] = request.kind.value
    record["request_id"] = place.context.request_id
    record["boot"] = place.boot
    return _dump(record)


def place_from_json(text: str) -> Place | None:
    """The place."""

    def read(record: dict[str, Any]) -> Place:
        context = RequestContext(str(record.get("request_id", "")))
        return Place(_request(record), context, str(record.get("boot", "")))

    return _parse(text, read)


def lease_to_json(held: Held) -> str:
    """One line of JSON: only what a lease needs to be told and to end."""
    record: dict[str, Any] = {name: getattr(held.request, name) for name in _LEASE_FIELDS}
    record["priority"] = int(held.request.priority)
    record["granted"] = held.granted
    record["granted_wall"] = _granted_wall(held)
    record["boot"] = held.boot
    return _dump(record)


def lease_from_json(text: str) -> Held | None:
    """The lease."""

    def read(record: dict[str, Any]) -> Held:
        granted = _number(record["granted"])
        wall = _number(record.get("granted_wall", 0.0))
        times = {"arrived": granted, "deadline": granted, "arrived_wall": wall}
        return Held(_request({**record, **times}), granted, str(record.get("boot", "")))

    return _parse(text, read)


def _granted_wall(held: Held) -> float:
    """Unix seconds; 0 = not known."""
    request = held.request
    waited_s = held.granted - request.arrived
    return round(request.arrived_wall + waited_s, 3) if request.arrived_wall else 0.0


def turn_to_json(turn: Turn) -> str:
    """One line of JSON."""
    return _dump(
        {n: getattr(turn, n) for n in ("pool", "line", "tenant", "tokens", "epoch", "boot")}
    )


def turn_from_json(text: str) -> Turn | None:
    """The turn."""

    def read(r: dict[str, Any]) -> Turn:
        names = str(r["pool"]), int(r["line"]), str(r["tenant"])
        return Turn(*names, _number(r["tokens"]), _number(r["epoch"]), str(r.get("boot", "")))

    return _parse(text, read)


def _request(record: dict[str, Any]) -> Request:
    known = {name: record[name] for name in _FIELDS if name in record}
    kind = Kind(record.get("kind", Kind.HELD.value))
    request = Request(**known, priority=Priority(record["priority"]), kind=kind)
    texts = (request.uid, request.pool, request.tenant, request.node, request.path, request.model)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name is no text")
    times = request.arrived, request.deadline, request.arrived_wall, request.seniority_s
    for number in times:
        _number(number)
    if not isinstance(request.seats, int) or request.seats < 1:
        raise ValueError("seats below 1")
    return request


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


_dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _parse(text: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        return read(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
