"""Lines about jobs that someone will ask about: refused, failed, expired, and webhooks that went
wrong.

A job's id opens it where there is no tenant, so only its beginning is written: `policy-server jobs
ls` has the rest. Each kind has a budget of lines per second; a line says how many were left out.
"""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from policy_server.core.events import Shed
from policy_server.core.outcome import Outcome
from policy_server.journal.jobs import Job, JobState, WebhookOutcome
from policy_server.telemetry.decision_log import WINDOW_S, Budget

LINES_PER_S = 50
"""Of each kind; a line takes some 10 µs of the event loop."""
ID_CHARS = 8
_TOLD = frozenset({JobState.FAILED, JobState.EXPIRED})


class JobLog:
    """Call `tick` about once a second."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._budgets = {kind: Budget(LINES_PER_S) for kind in ("job_refused", "job", "webhook")}
        self._window_end = float("-inf")

    def refused(self, shed: Shed, request_id: str) -> None:
        """One was not taken."""
        if self._budgets["job_refused"].take():
            request = shed.request
            self._logger.info(
                "request",
                kind="job",
                outcome=Outcome.SHED.value,
                reason=shed.reason.value,
                retry_after_s=round(shed.retry_after_s, 1),
                tenant=request.tenant,
                uid=request.uid,
                request_id=request_id,
                pool=request.pool,
                **{"class": request.priority.name},
            )

    def ended(self, job: Job) -> None:
        """One is over; of those that went well nothing is written."""
        if job.state in _TOLD and self._budgets["job"].take():
            self._logger.warning(
                "job", state=job.state.value, attempts=job.attempt, detail=job.detail, **_who(job)
            )

    def webhook(self, job: Job, outcome: WebhookOutcome, detail: str) -> None:
        """A try to tell the end of one; of a good one nothing is written."""
        if outcome is not WebhookOutcome.SENT and self._budgets["webhook"].take():
            self._logger.warning("webhook", outcome=outcome.value, detail=detail, **_who(job))

    def tick(self, now: float) -> None:
        """Close the second that is over: say what was left out."""
        if now < self._window_end:
            return
        self._window_end = now + WINDOW_S
        for kind, budget in self._budgets.items():
            if refused := budget.renew():
                self._logger.warning(f"{kind}_suppressed", suppressed=refused)


def _who(job: Job) -> dict[str, str]:
    return {"job": job.id[:ID_CHARS], "tenant": job.owner, "pool": job.pool}
