"""A flood stops a few seats below the limit while calm tenants come, and only then."""

from __future__ import annotations

import pytest

from policy_server.core.room.calm import MAX_SHARE, CalmReserve
from policy_server.core.room.classes import ClassRule, Heads
from policy_server.core.room.tenants import FairLines
from policy_server.core.room.ticket import Ticket
from tests.support.core_builders import P0, P1, P2, pool_params, request


def taught(calm: float, dispatches: int = 5_000) -> CalmReserve:
    reserve = CalmReserve()
    for number in range(dispatches):
        reserve.note_dispatch(P1, number % 100 < 100 * calm)
    return reserve


def test_without_calm_tenants_nothing_is_kept_free() -> None:
    assert CalmReserve().seats(P1, 1.0, 100.0) == 0
    assert taught(0.0).seats(P1, 1.0, 100.0) == 0


def test_the_more_the_calm_take_the_more_is_kept_for_them_up_to_a_fifth() -> None:
    kept = [taught(share).seats(P1, 1.0, 100.0) for share in (0.05, 0.3, 0.6, 0.9)]
    assert kept == sorted(kept)
    assert 1 <= kept[0] <= 4
    assert kept[-1] == MAX_SHARE * 100
    assert taught(0.9).seats(P2, 1.0, 100.0) == 0  # each class has its own


def test_no_more_is_kept_than_those_who_do_not_wait_could_take() -> None:
    kept = [taught(0.9).seats(P1, elsewhere, 100.0) for elsewhere in (0.01, 0.05, 0.3, 0.6, 1.0)]
    assert kept == [0, 2, 5, 13, 20]


def test_a_tiny_engine_keeps_nothing_free() -> None:
    assert taught(0.9).seats(P1, 1.0, 4.0) == 0


def test_tenants_who_come_once_are_no_flood() -> None:
    fair = FairLines()
    waiting(fair, "first", "second")
    assert fair.calm("first")  # nobody has used anything
    fair.charge("another", 100.0, 0.0)
    assert fair.calm("first")  # the heaviest who waits, and that is nothing
    assert not fair.calm("another")


def waiting(fair: FairLines, *tenants: str) -> list[Ticket]:
    tickets = [Ticket(request(f"{t}-{n}", tenant=t), n) for n, t in enumerate(tenants)]
    for ticket in tickets:
        fair.push(ticket)
    return tickets


def test_nothing_is_kept_for_tenants_who_all_wait_themselves() -> None:
    fair = FairLines({"heavy": 2.0})
    assert fair.elsewhere == 0.0  # nobody used anything
    for tenant, tokens in (("heavy", 500.0), ("b", 300.0), ("c", 200.0)):
        fair.charge(tenant, tokens, 0.0)
    assert fair.elsewhere == 1.0
    first, *others = waiting(fair, "heavy", "heavy", "b")
    assert fair.elsewhere == pytest.approx(0.2)
    waiting(fair, "c")
    assert fair.elsewhere == pytest.approx(0.0)
    fair.remove(first)
    assert fair.elsewhere == pytest.approx(0.0)  # it has another one in line
    for ticket in others:
        fair.remove(ticket)
    assert fair.elsewhere == pytest.approx(0.8)


def test_what_those_in_line_used_is_counted_through_charges_and_rescaling() -> None:
    fair = FairLines()
    waiting(fair, "a")
    fair.charge("a", 300.0, 0.0)
    fair.charge("b", 100.0, 0.0)
    assert fair.elsewhere == pytest.approx(0.25)
    fair.correct("a", -200.0, 0.0)  # a shorter answer than expected
    assert fair.elsewhere == pytest.approx(0.5)
    for age in (1_000.0, 2_000.0):
        fair.charge("a", 300.0, age)  # brings the numbers down again
        fair.charge("b", 100.0, age)
        assert fair.elsewhere == pytest.approx(0.25)


def test_calm_is_who_used_clearly_less_than_the_heaviest_who_waits() -> None:
    fair = FairLines()
    fair.charge("flood", 1000.0, 0.0)
    fair.charge("calm", 800.0, 0.0)
    fair.charge("equal", 900.0, 0.0)
    assert fair.calm("flood")  # nobody waits
    fair.push(Ticket(request("f", tenant="flood"), 1))
    assert [fair.calm(t) for t in ("flood", "calm", "equal", "new")] == [False, True, False, True]


RULE = pool_params(40.0).classes


def test_the_flood_stops_below_the_bound_and_the_calm_do_not() -> None:
    rule = ClassRule(RULE)
    flood, calm = Heads(held_back=(0, 5, 0, 0)), Heads(calm=(False, True, False, False))
    assert rule.choose([P1], [0, 34, 0, 0], 40.0, 0.0, flood) is P1
    assert rule.choose([P1], [0, 35, 0, 0], 40.0, 0.0, flood) is None
    assert rule.choose([P1], [0, 39, 0, 0], 40.0, 0.0, calm) is P1
    assert rule.choose([P1], [0, 40, 0, 0], 40.0, 0.0, calm) is None


def test_what_is_kept_free_is_not_borrowed_by_a_lesser_class() -> None:
    """P0 is entitled but held back: P2 with nothing to its share must not take the seats."""
    rule = ClassRule(RULE)
    heads = Heads(held_back=(8, 0, 0, 0))
    assert rule.choose([P0, P1], [20, 14, 0, 0], 40.0, 0.0, heads) is None
    assert rule.choose([P0, P2], [20, 14, 0, 0], 40.0, 0.0, heads) is P2  # within its own share


def test_while_a_cut_drains_the_calm_get_every_second_slot() -> None:
    rule = ClassRule(RULE)
    calm = Heads(calm=(False, True, False, False))
    rule.note_cut(50)
    assert rule.choose([P1], [0, 50, 0, 0], 40.0, 0.0, calm) is None
    assert rule.choose([P1], [0, 49, 0, 0], 40.0, 0.0, calm) is P1
    rule.note_freed(10)  # drained to 45
    assert rule.choose([P1], [0, 45, 0, 0], 40.0, 0.0, calm) is None
    assert rule.choose([P1], [0, 44, 0, 0], 40.0, 0.0) is None


def test_an_empty_engine_takes_whoever_comes() -> None:
    heads = Heads(held_back=(0, 9, 0, 0))
    assert ClassRule(RULE).choose([P1], [0, 0, 0, 0], 4.0, 0.0, heads) is P1
