"""A place as JSON, and back. Fields may be added; a reader fills what is missing with defaults."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

from policy_server.core.request import Kind, Priority, Request
from policy_server.journal.port import Place, RequestContext

_FIELDS = tuple(field.name for field in fields(Request) if field.name not in ("priority", "kind"))


def place_to_json(place: Place) -> str:
    """One line of JSON. ValueError when a field can't be written so that it can be read."""
    request = place.request
    record: dict[str, Any] = {name: getattr(request, name) for name in _FIELDS}
    record["priority"] = int(request.priority)
    record["kind"] = request.kind.value
    record["request_id"] = place.context.request_id
    request.uid.encode()  # a lone surrogate is no text
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def place_from_json(text: str) -> Place | None:
    """The place; None when the text is none. Fields that a newer version added are left out."""
    try:
        record = json.loads(text)
        context = RequestContext(str(record.get("request_id", "")))
        known = {name: record[name] for name in _FIELDS if name in record}
        request = Request(
            **known, priority=Priority(record["priority"]), kind=Kind(record.get("kind", "held"))
        )
        return Place(request, context) if _sound(request) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _sound(request: Request) -> bool:
    """Whether the fields that decide are what they should be; a file can hold anything."""
    numbers = (request.arrived, request.deadline, request.arrived_wall)
    return (
        isinstance(request.uid, str)
        and isinstance(request.pool, str)
        and isinstance(request.tenant, str)
        and all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers)
        and isinstance(request.seats, int)
        and request.seats >= 1
    )
