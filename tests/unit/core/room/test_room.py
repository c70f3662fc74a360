"""The room: bounded, and when it is full the least important and newest makes way."""

from __future__ import annotations

import pytest

from policy_server.core.params import RoomParams
from policy_server.core.request import Priority
from policy_server.core.room.places import FIRST_S
from policy_server.core.room.room import MAX_DISPLACED, Room
from tests.support.core_builders import P0, P1, P2, request


def room(*waiting: tuple[str, Priority], max_requests: int = 3, max_bytes: int = 100) -> Room:
    result = Room(RoomParams(max_requests, max_bytes))
    for uid, priority in waiting:
        result.enter(request(uid, priority))
    return result


def victims(full: Room, priority: Priority, body_bytes: int = 0) -> list[str] | None:
    found = full.victims_for(request("new", priority, body_bytes=body_bytes))
    return None if found is None else [t.request.uid for t in found]


def test_it_holds_no_more_requests_than_it_may() -> None:
    full = room(("a", P1), ("b", P1), ("c", P2))
    assert not full.fits(request("d", P1))
    full.leave("a")
    assert full.fits(request("d", P1))


def test_it_holds_no_more_bytes_than_it_may() -> None:
    some = room()
    some.enter(request("a", body_bytes=60))
    assert some.fits(request("b", body_bytes=40))
    assert not some.fits(request("b", body_bytes=41))


def test_the_newest_of_the_lowest_class_makes_way() -> None:
    full = room(("p1", P1), ("old", P2), ("new", P2))
    assert victims(full, P0) == ["new"]
    assert victims(full, P1) == ["new"]


def test_nobody_makes_way_for_an_equal_or_a_lesser_one() -> None:
    full = room(("a", P1), ("b", P1), ("c", P1))
    assert victims(full, P1) is None
    assert victims(full, P2) is None
    assert victims(full, P0) == ["c"]


def test_a_large_body_may_take_several_places() -> None:
    full = room(max_requests=10)
    for i, priority in enumerate((P1, P2, P2)):
        full.enter(request(f"u{i}", priority, body_bytes=30))
    assert victims(full, P0, body_bytes=50) == ["u2", "u1"]
    assert victims(full, P0, body_bytes=90) == ["u2", "u1", "u0"]


def test_a_body_that_no_room_could_hold_displaces_nobody() -> None:
    full = room(("a", P2), ("b", P2))
    assert victims(full, P0, body_bytes=101) is None


def test_one_request_displaces_a_bounded_number() -> None:
    full = room(max_requests=1_000, max_bytes=1_000)
    for i in range(1_000):
        full.enter(request(f"u{i}", P2, body_bytes=1))
    found = victims(full, P0, body_bytes=MAX_DISPLACED)
    assert found is not None
    assert len(found) == MAX_DISPLACED
    assert victims(full, P0, body_bytes=MAX_DISPLACED + 1) is None


def test_in_a_room_made_smaller_a_newcomer_makes_way_for_itself_only() -> None:
    full = room(*((f"u{i}", P2) for i in range(300)), max_requests=300, max_bytes=10_000)
    full.reconfigure(RoomParams(10, 100))
    assert victims(full, P0) == ["u299"]
    assert victims(full, P2) is None


def test_one_tenants_bodies_fill_half_of_the_room_at_most() -> None:
    half = room(max_requests=100, max_bytes=100)
    large = request("a", P1, tenant="t", body_bytes=90)
    assert not half.tenant_full(large)  # alone it may be as large as the room
    half.enter(request("b", P1, tenant="t", body_bytes=30))
    assert not half.tenant_full(request("c", P1, tenant="t", body_bytes=20))
    assert half.tenant_full(request("d", P1, tenant="t", body_bytes=21))
    assert not half.tenant_full(request("e", P1, tenant="other", body_bytes=70))
    half.leave("b")
    assert not half.tenant_full(large)


def test_sums_follow_who_enters_and_leaves() -> None:
    some = room()
    some.enter(request("a", P0, body_bytes=5))
    some.enter(request("b", P2, body_bytes=7))
    assert (some.held, some.held_bytes, some.counts()) == (2, 12, [1, 0, 1])
    assert some.waiting() == [P0, P2]
    assert some.leave("a") is not None
    assert some.leave("a") is None
    assert (some.held, some.held_bytes, some.counts()) == (1, 7, [0, 0, 1])


def test_one_uid_waits_once() -> None:
    with pytest.raises(ValueError, match="a waits already"):
        room(("a", P1), ("a", P2))


def test_the_expired_leave_least_important_first() -> None:
    some = room(("a", P0), ("b", P2))
    assert some.earliest_deadline() == 15.0
    assert some.expired(14.9) is None
    first = some.expired(15.0)
    assert first is not None
    assert first.request.uid == "b"


def test_a_kept_place_counts_in_line_but_not_as_waiting() -> None:
    some = room()
    some.keep_place(request("a", at=5.0, budget_s=15.0), 8.0)
    some.enter(request("b", at=9.0))
    assert (len(some), [r.uid for r in some], some.counts()[1]) == (1, ["b"], 2)
    assert some.head(Priority.P1).request.uid == "a"
    some.leave("a")
    assert (len(some), some.counts()[1]) == (1, 1)


def test_a_place_that_was_passed_by_gives_its_seniority_to_who_comes_late() -> None:
    some = room()
    some.keep_place(request("a", at=5.0, budget_s=15.0), 8.0)
    some.places.note_contact(8.0)
    some.pass_by(8.0 + FIRST_S)
    assert "a" not in some
    again, returned = some.claim(request("a", at=12.0))
    assert (returned, again.arrived, again.deadline) == (True, 5.0, 20.0)
    assert some.claim(request("a", at=12.0)) == (request("a", at=12.0), False)


def test_ahead_of_a_tenant_with_long_answers_the_others_have_more_turns() -> None:
    some = room(max_requests=1_000)
    for number in range(40):
        tenant, tokens = ("long", 1_000.0) if number % 2 else ("short", 100.0)
        some.charge(request("x", P1, tenant=tenant), tokens, 0.0)
    for number in range(50):
        for tenant in ("long", "short"):
            some.enter(request(f"{tenant}{number}", P1, tenant=tenant))
    used = {"long": 20_000.0, "short": 2_000.0}
    for tenant, tokens in used.items():  # by now both have taken the same
        some.correct(request("x", P1, tenant=tenant), 20_000.0 - tokens, 0.0)
    ahead = [some.ahead(request("n", P1, tenant=t), None, 0.0) for t in ("long", "short")]
    assert ahead[0] == pytest.approx(2 * 50 * 1_000 / 550, rel=0.2)
    assert ahead[1] == pytest.approx(50 + 50 * 100 / 550, rel=0.2)
