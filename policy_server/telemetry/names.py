"""Every metric this server exports, in one place: name, labels, what it means.

A name is a promise to dashboards and alerts: add, never rename. Labels come from the
configuration (pool) or from closed sets (class, outcome, reason), never from a client.
A test holds that each name is in the README.
"""

from __future__ import annotations

from typing import NamedTuple


class MetricId(NamedTuple):
    """Name, help line, label names."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


LIMIT = MetricId("policy_limit", "Concurrency limit of the pool, seats.", ("pool",))
INFLIGHT = MetricId("policy_inflight", "Seats in use at the model servers.", ("pool",))
WAITING = MetricId("policy_waiting", "Requests in the waiting room.", ("pool", "class"))
REQUESTS = MetricId(
    "policy_requests_total",
    "Requests by their one outcome; a re-sent request counts once.",
    ("pool", "class", "outcome"),
)
UNREAD = MetricId(
    "policy_unread_bodies_total",
    "Governed requests whose body Envoy could not read as JSON; they go to the first pool whose "
    "other keys match.",
    ("pool",),
)
SHED = MetricId("policy_shed_total", "Requests refused or evicted.", ("pool", "class", "reason"))
WAIT = MetricId(
    "policy_wait_seconds",
    "Time in the room of the admitted, 0 for those that went at once.",
    ("pool", "class"),
)
TENANT_REQUESTS = MetricId(
    "policy_tenant_requests_total",
    "Requests by tenant and outcome: the first 100 tenants that the configuration names (known, "
    "weights, max_class); other is the rest.",
    ("pool", "tenant", "outcome"),
)
TENANT_WAITING = MetricId(
    "policy_tenant_waiting",
    "Held requests by tenant, with the same labels.",
    ("pool", "tenant"),
)
WAIT_ERROR = MetricId(
    "policy_wait_prediction_error_seconds",
    "Wait of those who waited and went, minus what was predicted when they came.",
    ("pool", "class"),
)
RETRY_AFTER = MetricId(
    "policy_retry_after_seconds", "Retry-After given to the shed.", ("pool", "class")
)
RETURNS = MetricId(
    "policy_returns_total",
    "Clients that came back as told: admitted (yes), shed again (no), "
    "shed again while every slot within the longest Retry-After was promised (capped).",
    ("pool", "kept"),
)
TTFT = MetricId(
    "policy_ttft_seconds", "Dispatch to first token, where a first token was seen.", ("pool",)
)
TPOT = MetricId(
    "policy_tpot_seconds", "Time per output token of an answer, after the first.", ("pool",)
)
ENGINE_QUEUE = MetricId(
    "policy_engine_queue",
    "Requests queued inside the engine: reported by it, else estimated.",
    ("pool",),
)
BACKENDS_READY = MetricId(
    "policy_backends_ready",
    "Back ends that can take work, where the configuration names who tells.",
    ("pool",),
)
LIMIT_CHANGES = MetricId("policy_limit_changes_total", "Moves of the limit.", ("pool", "reason"))
DECISION = MetricId(
    "policy_decision_seconds", "Message in to answer out, of requests that did not wait."
)
LOOP_LAG = MetricId("policy_loop_lag_seconds", "How late the event loop ran a timer.")
LEASES_EXPIRED = MetricId(
    "policy_leases_expired_total",
    "Slots taken back because their request showed no sign of life.",
    ("pool",),
)
LOAD_REPORTS = MetricId(
    "policy_load_reports_total",
    "Load reports of the engines, from answers and from scraped pages: used, "
    "invalid (unreadable, or nothing in it is known and believable), stale, too_large, timeout, "
    "unreachable.",
    ("pool", "outcome"),
)
TICKETS = MetricId(
    "policy_tickets_total",
    "Places in line given in writing: issued; and shown again: honoured, invalid (forged, damaged, "
    "or of another tenant, pool or class), expired, used, full (too many to remember).",
    ("outcome",),
)
JOURNAL_COMMIT = MetricId(
    "policy_journal_commit_seconds", "Time of one transaction of the journal."
)
JOURNAL_RECORDS = MetricId(
    "policy_journal_records",
    "Records in the journal: waiting (held requests), leased (slots in use), unwritten (not on "
    "disk yet).",
    ("state",),
)
JOURNAL_HEALTHY = MetricId(
    "policy_journal_healthy", "1 while the journal's disk takes what is written, 0 in trouble."
)
JOBS_WAITING = MetricId(
    "policy_jobs_waiting", "Jobs that wait for room in the pool and may go now.", ("pool",)
)
JOBS = MetricId(
    "policy_jobs",
    "Jobs that are kept: queued, dispatched, done, failed, cancelled, expired.",
    ("state",),
)
WEBHOOKS = MetricId(
    "policy_webhooks_total",
    "Tries to tell the end of a job: sent, failed (it is tried again), dropped (never again: the "
    "last try, 410, or not allowed any more).",
    ("outcome",),
)
BUILD_INFO = MetricId("policy_build_info", "Always 1; the version is a label.", ("version",))
