"""Who may become a job, what is wrong with it, what its client reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from policy_server.adapters.answers import HttpAnswer
from policy_server.adapters.classify import Classified, Facts, Now, classify
from policy_server.adapters.job_intake import JobIntake, Wish, prefers_job
from policy_server.adapters.ports import JobDesk
from policy_server.adapters.rules import ClassifyRules
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority
from policy_server.journal.jobs import Accepted, Job, JobRefusal, Submission
from tests.support.fake_gate import FakeGate

JOB = Job("ab" * 16, "acme", "default", Priority.P1, "POST", "/v1/chat", 1.0, 2.0)


@dataclass
class FakeJobs:
    """Says what it is told to say."""

    says: Accepted | JobRefusal = field(default_factory=lambda: Accepted(JOB))
    max_body: int = 100
    taken: list[Submission] = field(default_factory=list)

    async def accept(self, submission: Submission) -> Accepted | JobRefusal:
        self.taken.append(submission)
        return self.says


def headers(**more: str) -> list[tuple[str, str]]:
    given = {
        ":method": "POST",
        ":path": "/v1/chat?x=1",
        ":authority": "models",
        "content-length": "5",
        "prefer": "respond-async",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return [(name, value) for name, value in given.items() if value]


def seen_of(pairs: list[tuple[str, str]]) -> Classified:
    return classify(Facts(dict(pairs)), ClassifyRules(), Now(0.0, 0.0))


def desk(**more: Any) -> tuple[JobIntake, FakeJobs, FakeGate]:
    jobs, gate = FakeJobs(**more), FakeGate()
    return JobIntake(cast(JobDesk, jobs), gate), jobs, gate


def wish(ended: bool = False, **more: str) -> Wish | HttpAnswer | None:
    intake, _, _ = desk()
    pairs = headers(**more)
    return intake.wish(seen_of(pairs), pairs, ended=ended)


@pytest.mark.parametrize(
    ("prefer", "wants"),
    [
        ("respond-async", True),
        ("Respond-Async", True),
        ("wait=5, respond-async", True),
        ("respond-async;x=1", True),
        ("wait=5", False),
        ("respond-asynchronously", False),
        ("no-respond-async", False),
        ("", False),
    ],
)
def test_the_preference(prefer: str, wants: bool) -> None:
    assert prefers_job(prefer) is wants


def test_what_is_kept_of_the_headers() -> None:
    pairs = headers(
        authorization="Bearer x",
        idempotency_key="k",
        x_webhook_url="https://h/",
        x_policy_uid="u",
        x_envoy_thing="y",
        connection="close",
        x_request_id="r",
    )
    found = desk()[0].wish(seen_of(pairs), [*pairs, ("x-two", "1"), ("x-two", "2")], ended=False)
    assert isinstance(found, Wish)
    assert found.headers == (
        ("authorization", "Bearer x"),
        ("idempotency-key", "k"),
        ("x-request-id", "r"),
        ("x-two", "1"),
        ("x-two", "2"),
    )
    assert (found.method, found.path, found.authority) == ("POST", "/v1/chat?x=1", "models")
    assert (found.key, found.webhook, found.waits, found.empty) == ("k", "https://h/", False, False)


@pytest.mark.parametrize(
    ("more", "ended", "status"),
    [
        ({"content_length": ""}, False, 411),
        ({"content_length": "", "transfer_encoding": "chunked"}, False, 411),
        ({"content_length": "five"}, False, 400),
        ({"content_length": "-5"}, False, 400),
        ({"content_length": "101"}, False, 413),
        ({"content_length": "9" * 30}, False, 413),
        ({"idempotency_key": "k" * 256}, False, 400),
        ({"idempotency_key": "k\u0007"}, False, 400),
        ({"x_webhook_url": "h" * 3000}, False, 400),
    ],
)
def test_what_can_not_be_taken(more: dict[str, str], ended: bool, status: int) -> None:
    answer = wish(ended, **more)
    assert isinstance(answer, HttpAnswer)
    assert answer.status == status
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert ("x-should-retry", "false") in answer.headers


@pytest.mark.parametrize(
    "more",
    [
        {"prefer": ""},
        {"content_type": "application/grpc"},
        {"upgrade": "websocket"},
        {":method": "GET"},
    ],
)
def test_what_is_an_ordinary_request(more: dict[str, str]) -> None:
    pairs = [(n, v) for n, v in dict(headers(), **_named(more)).items() if v]
    assert desk()[0].wish(seen_of(pairs), pairs, ended=False) is None


def _named(more: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in more.items()}


@pytest.mark.parametrize(("length", "ended"), [("0", False), ("", True), ("5", True)])
def test_nothing_to_wait_for(length: str, ended: bool) -> None:
    found = wish(ended, content_length=length)
    assert isinstance(found, Wish)
    assert found.empty


def test_both_preferences() -> None:
    found = wish(prefer="respond-async, wait=10")
    assert isinstance(found, Wish)
    assert found.waits


async def take(says: Accepted | JobRefusal, body: bytes = b"body!") -> tuple[HttpAnswer, FakeGate]:
    intake, _, gate = desk(says=says)
    pairs = headers()
    seen = seen_of(pairs)
    found = intake.wish(seen, pairs, ended=False)
    assert isinstance(found, Wish)
    return await intake.take(found, seen, body), gate


async def test_a_refusal_is_told_with_its_request_id() -> None:
    told: list[tuple[ShedReason, str]] = []
    for says in (JobRefusal.FULL, JobRefusal.KEY_CLASH):
        intake, _, _ = desk(says=says)
        intake.refused = lambda shed, request_id: told.append((shed.reason, request_id))
        pairs = headers(x_request_id="req-1")
        found = intake.wish(seen_of(pairs), pairs, ended=False)
        assert isinstance(found, Wish)
        await intake.take(found, seen_of(pairs), b"body!")
    assert told == [(ShedReason.ROOM_FULL, "req-1")]


async def test_the_202() -> None:
    answer, gate = await take(Accepted(JOB))
    assert answer.status == 202
    named = dict(answer.headers)
    assert named["location"] == f"/policy/jobs/{JOB.id}"
    assert named["preference-applied"] == "respond-async"
    assert json.loads(answer.body)["status"] == "queued"
    assert [what[2] for what in gate.counted] == [Outcome.JOB_ACCEPTED]


@pytest.mark.parametrize(
    ("refusal", "status", "outcome"),
    [
        (JobRefusal.KEY_CLASH, 422, Outcome.INVALID),
        (JobRefusal.WEBHOOK, 400, Outcome.INVALID),
        (JobRefusal.TOKEN_EXPIRED, 401, Outcome.INVALID),
        (JobRefusal.UNAVAILABLE, 503, Outcome.SHED),
        (JobRefusal.FULL, 429, Outcome.SHED),
        (JobRefusal.TENANT_LIMIT, 429, Outcome.SHED),
    ],
)
async def test_the_refusals(refusal: JobRefusal, status: int, outcome: Outcome) -> None:
    answer, gate = await take(refusal)
    assert answer.status == status
    assert [what[2] for what in gate.counted] == [outcome]
    if outcome is Outcome.SHED:
        named = dict(answer.headers)
        assert named["x-policy-reason"] == refusal.value
        assert 1 <= int(named["retry-after"]) <= 55
        assert ("x-envoy-ratelimited" in named) is (status == 429)
        assert int(dict(answer.headers)["retry-after"]) >= 1


async def test_a_body_that_is_larger_than_it_said() -> None:
    answer, _ = await take(Accepted(JOB), bytes(101))
    assert answer.status == 413


def test_bodies_under_way_are_bounded_but_one_always_fits() -> None:
    intake, _, gate = desk(max_body=10**9)
    pairs = headers(content_length=str(200 * 2**20))
    seen = seen_of(pairs)
    large = intake.wish(seen, pairs, ended=False)
    assert isinstance(large, Wish)
    with intake.receiving(large) as first, intake.receiving(large) as second:
        assert (first, second) == (True, False)
    with intake.receiving(replace(large, length=10**9)) as alone:
        assert alone
    assert intake.busy(seen).status == 429
    assert [what[2] for what in gate.counted] == [Outcome.SHED]


def test_a_server_that_lags_takes_the_most_important_only() -> None:
    intake, _, gate = desk()
    gate.lag = True
    for priority, taken in (("0", True), ("1", False), ("2", False)):
        pairs = headers(x_request_priority=priority)
        found = intake.wish(seen_of(pairs), pairs, ended=False)
        assert isinstance(found, Wish) is taken


@pytest.mark.parametrize(
    ("prefer", "waits"),
    [
        ("respond-async, wait=5", True),
        ('wait="5", respond-async', True),
        ("respond-async, wait=0", True),
        ("respond-async, wait=abc", False),
        ("respond-async, wait=-1", False),
        ("respond-async, wait=", False),
        ("wait=5 respond-async", False),
    ],
)
def test_a_wait_that_can_not_be_read_is_none(prefer: str, waits: bool) -> None:
    found = wish(prefer=prefer)
    assert isinstance(found, Wish)
    assert found.waits is waits
