"""Counts what came back. One record per request; one count per refused attempt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from policy_server.load.attempt import Attempt, End
from policy_server.load.refusal import faults
from policy_server.load.workload import Arrival

MAX_EXAMPLES = 5
MAX_ERROR_KINDS = 20


@dataclass(frozen=True, slots=True)
class Record:
    """One request over all its attempts. Seconds count from its scheduled moment.

    `ended_s` is on the run's clock (0 = start of the run). None = did not happen.
    """

    arrival: Arrival
    end: End
    attempts: int
    ended_s: float
    tokens: int = 0
    ttft_s: float | None = None
    queue_wait_ms: float | None = None

    @property
    def e2e_s(self) -> float:
        """Seconds from the scheduled moment to the end."""
        return self.ended_s - self.arrival.at_s


@dataclass(slots=True)
class Tally:
    """Everything seen so far; owned by the runner."""

    sent: int = 0
    records: list[Record] = field(default_factory=list)
    refusals: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    sheds_by_second: Counter[int] = field(default_factory=Counter)
    refused_attempts: int = 0
    malformed: int = 0
    malformed_examples: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def on_attempt(self, arrival: Arrival, attempt: Attempt, at_s: float) -> None:
        """Count one finished attempt at `at_s` of the run's clock."""
        reason = attempt.headers.get("x-policy-reason", "")
        if attempt.end is End.SHED or (attempt.status == 503 and reason):
            self._on_refusal(arrival, attempt.status, reason, attempt.headers)
            self.sheds_by_second[int(at_s)] += 1
        problem = attempt.error or _unexpected(attempt, reason)
        if problem and (problem in self.errors or len(self.errors) < MAX_ERROR_KINDS):
            self.errors[problem] += 1

    def on_end(self, record: Record) -> None:
        """Count the end of a request."""
        self.records.append(record)

    def _on_refusal(
        self, arrival: Arrival, status: int | None, reason: str, headers: Mapping[str, str]
    ) -> None:
        self.refused_attempts += 1
        self.refusals[arrival.priority][f"{status} {reason or 'no x-policy-reason'}"] += 1
        found = faults(headers)
        if found:
            self.malformed += 1
            if len(self.malformed_examples) < MAX_EXAMPLES:
                self.malformed_examples.append("; ".join(found))


def _unexpected(attempt: Attempt, reason: str) -> str:
    """A name for an end that is neither an answer nor a refusal by policy."""
    if attempt.end in (End.SERVER_ERROR, End.OTHER_STATUS) and not reason:
        return f"HTTP {attempt.status}"
    return "stream without an end" if attempt.end is End.INCOMPLETE else ""
