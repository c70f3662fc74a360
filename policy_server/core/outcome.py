"""The closed sets: how a request ends at the gate, why it was shed, how a lease ended."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The one outcome of each request (metric label)."""

    ADMITTED = "admitted"  # went at once
    QUEUED_ADMITTED = "queued_admitted"  # waited in the room, then went
    SHED = "shed"
    CANCELLED = "cancelled"  # the client left while it waited
    JOB_ACCEPTED = "job_accepted"
    PASSED = "passed"  # not governed
    INVALID = "invalid"


class ShedReason(Enum):
    """Why a request was refused (before it entered the room) or evicted (out of it)."""

    ROOM_FULL = "room_full"
    PREDICTED_WAIT = "predicted_wait"
    DEADLINE = "deadline"
    DISPLACED = "displaced"
    TENANT_LIMIT = "tenant_limit"
    RETRY_BUDGET = "retry_budget"
    NO_BACKEND = "no_backend"
    DRAINING = "draining"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    OVERLOADED = "overloaded"

    @property
    def capacity_exists(self) -> bool:
        """Whether capacity exists but is contended (HTTP 429); otherwise there is none (503).

        `OVERLOADED` counts as contended: it is the policy server's own shortage and passes at
        once, and a 429 keeps proxies in front from retrying or ejecting the gateway.
        """
        return self not in _NO_CAPACITY


_NO_CAPACITY = frozenset(
    {ShedReason.NO_BACKEND, ShedReason.DRAINING, ShedReason.JOURNAL_UNAVAILABLE}
)


class ReportOutcome(Enum):
    """What became of one load report, or of one try to get it (metric label)."""

    USED = "used"
    INVALID = "invalid"  # can't be read, or nothing in it is known and believable
    STALE = "stale"  # older than a report may be
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # no connection, a broken one, or an answer other than 200


class TicketOutcome(Enum):
    """What became of a place in line that was given in writing (metric label)."""

    ISSUED = "issued"
    HONOURED = "honoured"
    INVALID = "invalid"  # not ours, damaged, or of another tenant, pool or class
    EXPIRED = "expired"
    USED = "used"
    FULL = "full"  # more were used lately than can be remembered, so none is honoured


class LeaseEnd(Enum):
    """How a slot at the engine was given back. Every lease ends exactly once."""

    COMPLETED = "completed"  # an upstream answer below 500 that is not 429
    UPSTREAM_ERROR = "upstream_error"  # 429, 5xx or no answer at all
    CLIENT_CANCELLED = "client_cancelled"  # the client left mid-answer: no latency sample
    NEVER_SENT = "never_sent"  # it left before it learned of its admission
    EXPIRED = "expired"  # no sign of life while its Envoy was talking, or its Envoy is dead
