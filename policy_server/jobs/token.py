"""When the bearer token that a job carries runs out: a job never outlives it.

The token is read, not verified: whoever is in front of the model server does that. A token that is
no JWT, or has no `exp`, sets no bound.
"""

from __future__ import annotations

import base64
import binascii
import json
import math

from policy_server.journal.jobs import Headers

MAX_TOKEN_CHARS = 64 * 1024


def runs_out_at(headers: Headers) -> float:
    """Unix seconds; infinity when nothing is known."""
    values = (value for name, value in headers if name == "authorization")
    return min((_expiry(value) for value in values), default=math.inf)


def _expiry(authorization: str) -> float:
    scheme, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3 or len(token) > MAX_TOKEN_CHARS:
        return math.inf
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return math.inf
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    if isinstance(expiry, bool) or not isinstance(expiry, int | float):
        return math.inf
    return float(expiry) if abs(expiry) < 1e12 else math.inf
