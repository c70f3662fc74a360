"""Which jobs and webhooks leave a line, and what is in none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import structlog
from structlog.typing import FilteringBoundLogger

from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason
from policy_server.core.request import Priority, Request
from policy_server.journal.jobs import Job, JobState, WebhookOutcome
from policy_server.telemetry.job_log import LINES_PER_S, JobLog
from policy_server.telemetry.logs import ALLOWED_FIELDS

JOB_ID = "0123456789abcdef0123456789abcdef"


class Lines:
    """A log and the lines it wrote."""

    def __init__(self) -> None:
        self._capture = structlog.testing.LogCapture()
        logger = structlog.wrap_logger(None, processors=[self._capture]).bind()
        self.log = JobLog(cast(FilteringBoundLogger, logger))

    @property
    def written(self) -> list[dict[str, Any]]:
        found = cast(list[dict[str, Any]], self._capture.entries)
        for line in found:
            assert line.keys() - {"log_level"} <= ALLOWED_FIELDS
        return found


def job(state: JobState, detail: str = "") -> Job:
    made = Job(JOB_ID, "acme", "chat", Priority.P1, "POST", "/x", 1.0, 2.0, state)
    return replace(made, owner="acme", attempt=3, detail=detail)


def test_a_refused_job_is_found_by_its_request_id() -> None:
    lines = Lines()
    request = Request(uid="u", pool="chat", priority=Priority.P2, arrived=0.0, deadline=1.0)
    shed = Shed(replace(request, tenant="acme"), ShedReason.TENANT_LIMIT, 30.0, 0.0, False)
    lines.log.refused(shed, "req-1")
    (line,) = lines.written
    assert (line["event"], line["kind"], line["outcome"]) == ("request", "job", "shed")
    assert (line["reason"], line["request_id"]) == ("tenant_limit", "req-1")
    assert (line["tenant"], line["class"], line["pool"]) == ("acme", "P2", "chat")


def test_what_went_wrong_is_told_and_what_opens_the_job_is_not() -> None:
    lines = Lines()
    for state in JobState:
        lines.log.ended(job(state, "the model server answered 503"))
    for outcome in WebhookOutcome:
        lines.log.webhook(job(JobState.DONE), outcome, "https://a.example answered 500")
    said = [(line["event"], line.get("state") or line["outcome"]) for line in lines.written]
    assert said == [
        ("job", "failed"),
        ("job", "expired"),
        ("webhook", "failed"),
        ("webhook", "dropped"),
    ]
    assert all(line["job"] == JOB_ID[:8] and JOB_ID not in str(line) for line in lines.written)
    assert lines.written[0]["detail"] == "the model server answered 503"


def test_a_storm_of_them_is_bounded_and_counted() -> None:
    lines = Lines()
    lines.log.tick(0.0)
    for _ in range(LINES_PER_S + 7):
        lines.log.ended(job(JobState.FAILED))
    lines.log.tick(0.5)
    assert len(lines.written) == LINES_PER_S
    lines.log.tick(1.0)
    assert lines.written[-1]["event"] == "job_suppressed"
    assert lines.written[-1]["suppressed"] == 7
    lines.log.ended(job(JobState.FAILED))
    assert lines.written[-1]["event"] == "job"
