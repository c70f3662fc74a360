"""When a client of the official SDKs tries again. Pure.

After openai-python and anthropic-python: two retries, on connection errors, 408, 409, 429 and 5xx;
`x-should-retry` overrules; a wait of `retry-after-ms` or `retry-after` when it is at most 60 s,
otherwise .5 s doubling up to 8 s, less up to a quarter of jitter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

MAX_RETRIES = 2
MAX_RETRY_AFTER_S = 60.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
JITTER = 0.25


def should_retry(status: int | None, headers: Mapping[str, str]) -> bool:
    """Whether this end of an attempt is worth another; `status` None = no answer came."""
    asked = headers.get("x-should-retry")
    if asked in ("true", "false"):
        return asked == "true"
    return status is None or status in (408, 409, 429) or status >= 500


def delay_s(retries: int, headers: Mapping[str, str], rng: random.Random) -> float:
    """Seconds to wait before the next attempt; `retries` = retries made so far."""
    told = retry_after_s(headers)
    if told is not None and 0 < told <= MAX_RETRY_AFTER_S:
        return told
    backoff = min(FIRST_BACKOFF_S * 2.0**retries, MAX_BACKOFF_S)
    return backoff * (1 - JITTER * rng.random())


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asked for, None = it did not say (in a form that SDKs read)."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            value = float(headers[name])
        except (KeyError, ValueError):
            continue
        if math.isfinite(value):
            return value * unit_s
    return None
