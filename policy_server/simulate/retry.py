"""When a client SDK comes back, taken from openai 3.57 and anthropic 2.14 (`_base_client.py`).

Both retry 408, 409, 429 and 5xx twice, obey `x-should-retry`, and wait for what `retry-after-ms`
or `retry-after` says, without jitter; without the header .5 s · 2^n, at most 8 s, less 0–25 %.
They differ on long waits: older ones ignore more than 60 s and use their own back-off, the
present OpenAI client gives up past 120 s. The product answers at most 55 s, so that all agree.
"""

from __future__ import annotations

from random import Random

MAX_RETRIES = 2
INITIAL_DELAY_S = 0.5
MAX_DELAY_S = 8.0
MAX_HONOURED_S = 60.0
JITTER = 0.25


def retry_delay_s(
    attempt: int, retry_after_s: float | None, should_retry: bool, rng: Random
) -> float | None:
    """Seconds until the next attempt after refused attempt number `attempt` (from 0).

    None = it gives up.
    """
    if attempt >= MAX_RETRIES or not should_retry:
        return None
    if retry_after_s is not None and 0.0 < retry_after_s <= MAX_HONOURED_S:
        return retry_after_s
    return min(INITIAL_DELAY_S * 2.0**attempt, MAX_DELAY_S) * (1.0 - JITTER * rng.random())
