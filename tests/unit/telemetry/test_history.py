"""The last minutes, as the charts get them."""

from __future__ import annotations

import json
from typing import Any

from policy_server.core.request import Priority
from policy_server.telemetry.history import EVERY_S, POINTS, History
from policy_server.telemetry.views import PoolView


def pool(name: str = "chat", waiting: int = 0, **facts: Any) -> PoolView:
    return PoolView(name, 40.04, 38, 30, waiting={Priority.P1: waiting}, **facts)


def counts(admitted: int, deadline: int = 0) -> dict[str, dict[str, dict[str, int]]]:
    outcomes = {"P1 admitted": admitted, "P1 queued_admitted": 1, "P1 shed": deadline}
    return {"chat": {"outcomes": outcomes, "sheds": {"P1 deadline": deadline}}}


def columns(history: History, now: float, name: str = "chat") -> dict[str, list[float | None]]:
    document: Any = json.loads(json.dumps(history.document(now)))
    found: dict[str, list[float | None]] = document["pools"][name]
    return found


def test_a_chart_gets_levels_as_they_were_and_counters_as_rates() -> None:
    history = History()
    history.sample(100.0, [pool(waiting=3, engine_queue=1.26)], counts(10))
    history.sample(102.0, [pool(waiting=5)], counts(30, deadline=1))
    assert columns(history, 103.0) == {
        "age_s": [3.0, 1.0],
        "limit": [40.0, 40.0],
        "inflight": [38, 38],
        "waiting": [3, 5],
        "engine_queue": [1.3, None],
        "admitted_per_s": [None, 10.0],
        "shed_per_s": [None, 0.5],
    }


def test_it_keeps_ten_minutes_and_forgets_a_pool_that_is_gone() -> None:
    history = History()
    history.sample(0.0, [pool(), pool("gone")], {})
    for step in range(1, POINTS + 5):
        history.sample(step * EVERY_S, [pool()], {})
    now = (POINTS + 4) * EVERY_S
    assert len(columns(history, now)["age_s"]) == POINTS
    assert list(history.document(now)["pools"]) == ["chat"]  # type: ignore[call-overload]


def test_rates_tell_what_happens_now_not_since_the_start() -> None:
    history = History()
    history.sample(0.0, [pool()], counts(1000, deadline=500))
    for step in range(1, 11):
        history.sample(step * EVERY_S, [pool()], counts(1000 + 4 * step, deadline=500))
    assert history.rates("chat", 20.0, counts(1040, deadline=500)["chat"]) == {
        "outcomes": {"P1 admitted": 2.0},
        "sheds": {},
    }


def test_before_there_are_two_moments_there_is_no_rate() -> None:
    history = History()
    assert history.rates("chat", 5.0, counts(10)["chat"]) == {}
    history.sample(5.0, [pool()], counts(10))
    assert history.rates("chat", 5.5, counts(20)["chat"]) == {}


def test_a_point_is_due_every_two_seconds_of_a_tick_each_second() -> None:
    history = History()
    sampled = []
    for tick in range(10):
        now = tick * 1.001
        if history.due(now):
            history.sample(now, [], {})
            sampled.append(tick)
    assert sampled == [0, 2, 4, 6, 8]
