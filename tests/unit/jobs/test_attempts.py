"""What becomes of a job after an attempt."""

from __future__ import annotations

import math
from email.utils import formatdate

import pytest

from policy_server.jobs.attempts import (
    LONGEST_PAUSE_S,
    MAX_FAILURES,
    MAX_TOLD_S,
    UNREACHED_PAUSE_S,
    Attempt,
    Next,
    Standing,
    judge,
)
from policy_server.journal.jobs import JobState

NOW = 1_700_000_000.0


def after(status: int | None, failures: int = 1, jitter: float = 1.0, **headers: str) -> Next:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    standing = Standing(failures, failures, NOW, NOW + 1e6)
    return judge(Attempt(status, named), standing, jitter)


UNREACHED = Attempt(None, {}, reached=False)


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 422])
def test_an_answer_below_500_is_the_answer(status: int) -> None:
    assert after(status) == Next(JobState.DONE)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
def test_a_refusal_or_a_failure_is_tried_again_later_and_later(status: int) -> None:
    pauses = [after(status, failures).pause_s for failures in range(1, MAX_FAILURES)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 2.0
    assert pauses[-1] == LONGEST_PAUSE_S
    assert after(status, 1, jitter=0.0).pause_s == 1.0


def test_after_the_last_try_the_last_answer_stands() -> None:
    assert after(429, MAX_FAILURES) == Next(JobState.DONE)
    assert after(503, MAX_FAILURES) == Next(JobState.FAILED)


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry_after": "30"}, 30.0),
        ({"retry_after": "30", "retry_after_ms": "40500"}, 40.5),
        ({"retry_after": formatdate(NOW + 90, usegmt=True)}, 90.0),
        ({"retry_after": "1"}, 2.0),  # the back-off is longer
        ({"retry_after": "99999999"}, MAX_TOLD_S),
        ({"retry_after": "-5"}, 2.0),
        ({"retry_after": "soon"}, 2.0),
        ({"retry_after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, 2.0),
        ({"retry_after": "Fri, 31 Dec 9999 23:59:59 -2300"}, MAX_TOLD_S),
        ({"retry_after": "Mon, 01 Jan 0001 00:00:00 +2300"}, 2.0),
        ({"retry_after": formatdate(0, usegmt=True)}, 2.0),
    ],
)
def test_the_model_server_says_when(headers: dict[str, str], pause_s: float) -> None:
    assert math.isclose(after(429, **headers).pause_s, pause_s)


def test_the_model_server_may_say_never() -> None:
    assert after(503, x_should_retry="false") == Next(JobState.FAILED)


def test_what_was_not_reached_is_tried_for_as_long_as_there_is_time() -> None:
    standing = Standing(0, 500, NOW, NOW + 1e6)
    assert judge(UNREACHED, standing, 1.0) == Next(None, UNREACHED_PAUSE_S)
    soon = Standing(0, 3, NOW, NOW + 1.0)
    assert judge(UNREACHED, soon, 1.0) == Next(JobState.EXPIRED)
    assert judge(Attempt(503, {}), soon, 1.0) == Next(JobState.FAILED)


def test_whoever_breaks_its_model_server_is_tried_so_often_and_no_oftener() -> None:
    assert after(None, 1).pause_s == 2.0
    assert after(None, MAX_FAILURES) == Next(JobState.FAILED)
    assert Attempt(None, {}).failed
    assert not UNREACHED.failed
