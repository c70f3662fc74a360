"""Who is awaited after a restart, for how long, and when it is given up."""

from __future__ import annotations

from policy_server.core.room.places import ABSENT_S, FIRST_S, LONGEST_S, QUIET_S, SWEEP_S, Places
from tests.support.core_builders import request


def kept(*uids: str, at: float = 100.0, budget_s: float = 30.0) -> Places:
    places = Places()
    for uid in uids:
        places.keep(request(uid, at=at, budget_s=budget_s), at)
    places.note_contact(at)
    return places


def test_before_the_first_request_everyone_is_awaited() -> None:
    places = Places()
    places.keep(request("a", at=100.0, budget_s=300.0), 100.0)
    assert places.pass_by(140.0) == []
    places.note_contact(140.0)
    assert places.due_at() == 140.0 + FIRST_S
    assert places.pass_by(140.0 + FIRST_S) == ["a"]


def test_nothing_kept_asks_for_no_timer() -> None:
    places = Places()
    assert places.due_at() == float("inf")
    assert places.pass_by(1e9) == []
    assert places.lapsed(1e9) == []


def test_nobody_comes_back() -> None:
    places = kept("a", "b")
    assert places.due_at() == 100.0 + FIRST_S
    assert places.pass_by(100.0 + FIRST_S - 0.01) == []
    assert places.pass_by(100.0 + FIRST_S) == ["a", "b"]
    assert (places.in_line, len(places)) == (0, 2)


def test_while_some_come_back_the_others_are_awaited() -> None:
    places = kept("a", "b", "c")
    assert places.back("b", 101.9)
    assert not places.back("b", 101.9)
    assert places.pass_by(101.9 + QUIET_S - 0.01) == []
    assert places.pass_by(101.9 + QUIET_S) == ["a", "c"]


def test_not_for_ever() -> None:
    places = kept(*map(str, range(1_000)))
    now = 100.0
    while not (passed := places.pass_by(now)):
        places.back(str(round((now - 100.0) * 10)), now)
        now += 0.1
    assert LONGEST_S <= now - 100.0 < LONGEST_S + 0.11
    assert len(passed) > 900


def test_who_was_passed_by_can_be_claimed_once() -> None:
    places = kept("a")
    places.pass_by(102.0)
    assert places.claim("a") == request("a", at=100.0, budget_s=30.0)
    assert places.claim("a") is None
    assert places.due_at() == float("inf")


def test_who_does_not_come_lapses_at_its_deadline_or_when_envoy_has_given_up() -> None:
    places = kept("short", budget_s=5.0)
    places.keep(request("long", at=100.0, budget_s=600.0), 100.0)
    places.note_contact(100.0)
    places.pass_by(102.0)
    assert places.due_at() == 102.0 + SWEEP_S
    assert places.lapsed(104.0) == []
    assert [r.uid for r in places.lapsed(106.0)] == ["short"]
    assert [r.uid for r in places.lapsed(100.0 + ABSENT_S)] == ["long"]
    assert len(places) == 0
