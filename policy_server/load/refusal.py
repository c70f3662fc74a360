"""Checks that a refusal keeps the contract: an honest, readable Retry-After. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

MIN_S = 1
MAX_S = 55


def faults(headers: Mapping[str, str]) -> list[str]:
    """What is wrong with a refusal's headers; an empty list = well-formed."""
    seconds = _whole(headers.get("retry-after"))
    if seconds is None:
        return [f"retry-after is {headers.get('retry-after')!r}, not a whole number"]
    found: list[str] = []
    if not MIN_S <= seconds <= MAX_S:
        found.append(f"retry-after {seconds} is outside of {MIN_S}-{MAX_S}")
    milliseconds = _whole(headers.get("retry-after-ms"))
    if milliseconds is None:
        found.append(f"retry-after-ms is {headers.get('retry-after-ms')!r}, not a whole number")
    elif math.ceil(milliseconds / 1000) != seconds:
        found.append(f"retry-after {seconds} is not ceil(retry-after-ms {milliseconds} / 1000)")
    if not headers.get("x-policy-reason"):
        found.append("x-policy-reason is missing")
    return found


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
