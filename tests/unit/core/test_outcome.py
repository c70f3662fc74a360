"""What a refusal means to a client: come back (429), or there is nothing here now (503)."""

from __future__ import annotations

from policy_server.core.outcome import Outcome, ShedReason


def test_503_only_where_no_capacity_exists() -> None:
    none = {r.value for r in ShedReason if not r.capacity_exists}
    assert none == {"no_backend", "draining", "journal_unavailable"}


def test_the_closed_set_of_outcomes() -> None:
    assert {o.value for o in Outcome} == {
        "admitted",
        "queued_admitted",
        "shed",
        "cancelled",
        "job_accepted",
        "passed",
        "invalid",
    }
