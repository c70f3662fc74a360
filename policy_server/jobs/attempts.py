"""What becomes of a job after an attempt. Pure.

below 500, not 429     done
429, 5xx               again, when the model server says or after a back-off, `MAX_FAILURES`
                       times in all; then done (429) or failed, with the last answer
reached, but reset,    the same: whoever brings its model server down must not do so all day
cut or silent
no model server        again, for as long as its time is not up: nothing was tried yet that
reached                could have failed
its time is up         the same as after the last try
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from policy_server.journal.jobs import JobState

MAX_FAILURES = 10
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
UNREACHED_PAUSE_S = 30.0
MAX_TOLD_S = 6 * 3600.0
"""A model server may ask for so much, no more."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one went. `status` None = no whole answer came from a model server; `reached`: it may
    have got the request all the same."""

    status: int | None
    headers: Mapping[str, str]
    detail: str = ""
    reached: bool = True

    @property
    def failed(self) -> bool:
        """Whether it counts as a failure of the model server."""
        return self.reached if self.status is None else self.status == 429 or self.status >= 500


@dataclass(frozen=True, slots=True)
class Standing:
    """A job after its attempt: `failures` with this one, Unix seconds."""

    failures: int
    attempt: int
    now: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Next:
    """What to do: end in `state`, or (None) try again in `pause_s` seconds."""

    state: JobState | None
    pause_s: float = 0.0


def judge(attempt: Attempt, standing: Standing, jitter: float) -> Next:
    """The next step; `jitter` in 0..1 spreads the back-off."""
    status = attempt.status
    if status is not None and not attempt.failed:
        return Next(JobState.DONE)
    told = _told_s(attempt.headers, standing.now)
    spread = 0.5 + 0.5 * jitter
    if not attempt.failed:
        pause = min(UNREACHED_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(standing.attempt, 10)) * spread
    else:
        backoff = FIRST_PAUSE_S * 2.0 ** min(standing.failures, 20)
        pause = max(min(LONGEST_PAUSE_S, backoff) * spread, told)
    again = standing.now + pause < standing.expires_at
    if not attempt.failed:
        return Next(None, pause) if again else Next(JobState.EXPIRED)
    wanted = attempt.headers.get("x-should-retry", "").lower() != "false"
    if again and wanted and standing.failures < MAX_FAILURES:
        return Next(None, pause)
    return Next(JobState.DONE if status == 429 else JobState.FAILED)


def _told_s(headers: Mapping[str, str], now: float) -> float:
    """Seconds that `retry-after-ms` or `retry-after` ask for; 0 when they are none."""
    exact = headers.get("retry-after-ms", "").strip()
    value = headers.get("retry-after", "").strip()
    if _is_number(exact):
        told = float(exact) / 1000
    elif _is_number(value):
        told = float(value)
    else:
        try:
            when = parsedate_to_datetime(value)
            told = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, TypeError, IndexError, OverflowError):
            return 0.0
    return min(max(0.0, told), MAX_TOLD_S)


def _is_number(text: str) -> bool:
    whole, _, part = text.partition(".")
    return text.isascii() and whole.isdigit() and (part.isdigit() or not part) and len(text) < 16
