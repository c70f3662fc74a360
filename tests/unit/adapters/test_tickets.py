"""A ticket gives its holder the old place, once; whatever else is shown gives nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.adapters.ticket_keys import Key, KeyRing
from policy_server.adapters.tickets import GRACE_S, MAX_SENIORITY_S, Tickets
from policy_server.adapters.used_tickets import UsedInMemory
from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason, TicketOutcome
from policy_server.core.request import UNKNOWN_TENANT, Priority, Request

NOW = 1_800_000_000.0
RETRY_S = 12.0


class Office:
    """One server's tickets, and what became of them."""

    def __init__(self, key: bytes = b"k" * 32, slots: int = 100) -> None:
        self.outcomes: Counter[TicketOutcome] = Counter()
        self.tickets = Tickets(KeyRing([Key(0.0, key)]), UsedInMemory(slots), self._told)

    def _told(self, outcome: TicketOutcome) -> None:
        self.outcomes[outcome] += 1

    def issue(self, first: Request, at: float = NOW, **shed: Any) -> str:
        return self.tickets.issue(
            Shed(first, ShedReason.PREDICTED_WAIT, RETRY_S, 0.0, evicted=False, **shed), at
        )

    def redeem(self, text: str, at: float = NOW + RETRY_S, **facts: Any) -> Request:
        return self.tickets.redeem(text, request(at, **facts), at)


def request(at: float = NOW, tenant: str = "a", **facts: Any) -> Request:
    who: dict[str, Any] = {"pool": "chat", "priority": Priority.P1, "tenant": tenant, **facts}
    return Request("uid", arrived=0.0, deadline=15.0, arrived_wall=at, **who)


def test_it_gives_the_place_back_and_no_longer_wait() -> None:
    office = Office()
    back = office.redeem(office.issue(request()))
    assert back.seniority_s == pytest.approx(RETRY_S, abs=0.01)
    assert back.returning
    assert back.invited
    assert back.budget_s == 15.0
    assert office.outcomes == {TicketOutcome.ISSUED: 1, TicketOutcome.HONOURED: 1}


def test_it_is_good_once() -> None:
    office = Office()
    text = office.issue(request())
    assert office.redeem(text).seniority_s
    assert office.redeem(text) == request(NOW + RETRY_S)
    assert office.outcomes[TicketOutcome.USED] == 1


@pytest.mark.parametrize(
    "other", [{"tenant": "b"}, {"tenant": ""}, {"pool": "rest"}, {"priority": Priority.P0}]
)
def test_it_is_bound_to_tenant_pool_and_class(other: dict[str, Any]) -> None:
    office = Office()
    text = office.issue(request())
    assert office.redeem(text, **other) == request(NOW + RETRY_S, **other)
    assert office.outcomes[TicketOutcome.INVALID] == 1
    assert office.redeem(text).seniority_s, "a stranger's try does not use it up"


def test_pool_and_tenant_can_not_be_shifted_into_each_other() -> None:
    office = Office()
    text = office.issue(request(tenant="b\0c", pool="a"))
    assert not office.redeem(text, pool="a\0b", tenant="c").returning


def test_it_expires_a_minute_after_its_moment() -> None:
    office = Office()
    late, last = office.issue(request()), office.issue(request())
    assert office.redeem(last, at=NOW + RETRY_S + GRACE_S - 1).seniority_s
    assert not office.redeem(late, at=NOW + RETRY_S + GRACE_S + 1).returning
    assert office.outcomes[TicketOutcome.EXPIRED] == 1


def test_before_its_moment_it_keeps_the_place_but_nobody_asked_for_the_return() -> None:
    office = Office()
    back = office.redeem(office.issue(request()), at=NOW + 2)
    assert back.seniority_s == pytest.approx(2, abs=0.01)
    assert back.returning
    assert not back.invited


def test_another_servers_key_is_a_strangers() -> None:
    text = Office(b"x" * 32).issue(request())
    assert not Office().redeem(text).returning


def test_a_renewed_ticket_keeps_the_first_arrival_up_to_a_bound() -> None:
    office = Office()
    back, at = request(), NOW
    for _ in range(60):
        text = office.issue(back, at)
        at += RETRY_S
        back = office.redeem(text, at)
        assert back.seniority_s == pytest.approx(min(at - NOW, MAX_SENIORITY_S), abs=0.1)


@pytest.mark.parametrize("tenant", ["", UNKNOWN_TENANT])
def test_where_strangers_share_a_line_only_the_time_waited_here_counts(tenant: str) -> None:
    office = Office()
    back, at = request(tenant=tenant), NOW
    for _ in range(6):  # a ticket is renewed, `prefer: wait=0`
        text = office.issue(back, at)
        at += 50.0
        back = office.redeem(text, at, tenant=tenant)
        assert back.seniority_s == 0.0
        assert back.returning
        assert back.invited
    for waits in (1, 2):
        shed = Shed(back, ShedReason.DEADLINE, RETRY_S, 15.0, evicted=True)
        at += RETRY_S
        back = office.redeem(office.tickets.issue(shed, at - RETRY_S), at, tenant=tenant)
        assert back.seniority_s == 15.0 * waits
    shed = Shed(back, ShedReason.DEADLINE, RETRY_S, 1e6, evicted=True)
    text = office.tickets.issue(shed, at)
    assert office.redeem(text, at + RETRY_S, tenant=tenant).seniority_s == MAX_SENIORITY_S


def test_a_clock_that_was_set_back_gives_no_negative_seniority() -> None:
    office = Office()
    assert office.redeem(office.issue(request()), at=NOW - 30).seniority_s == 0.0


def test_it_says_nothing_about_its_owner() -> None:
    text = Office().issue(request(tenant="secret-tenant"))
    assert "secret" not in text
    assert len(text) < 64
    assert text.replace("-", "").replace("_", "").isalnum()


def test_no_ticket_where_coming_back_does_not_help() -> None:
    office = Office()
    assert office.issue(request(), should_retry=False) == ""
    overloaded = Shed(request(), ShedReason.OVERLOADED, 2.0, 0.0, evicted=False)
    assert office.tickets.issue(overloaded, NOW) == ""


def test_when_no_more_can_be_remembered_none_is_honoured_twice() -> None:
    office = Office(slots=3)
    texts = [office.issue(request()) for _ in range(5)]
    honoured = [bool(office.redeem(text).returning) for text in texts]
    assert honoured == [True, True, True, False, False]
    assert office.outcomes[TicketOutcome.FULL] == 2
    assert not any(office.redeem(text).returning for text in texts)
    late = NOW + RETRY_S + GRACE_S + 1
    assert office.redeem(office.issue(request(late), late), late + RETRY_S).returning


@given(st.text(max_size=80) | st.text("ABCDabcd0123-_", min_size=51, max_size=51))
def test_garbage_is_as_good_as_none(text: str) -> None:
    office = Office()
    assert office.redeem(text) == request(NOW + RETRY_S)
    assert office.outcomes == {TicketOutcome.INVALID: 1}


@given(st.integers(0, 50), st.sampled_from("ABYZabyz0189-_=+/ \x00é"))
def test_a_ticket_with_one_letter_changed_is_none(place: int, letter: str) -> None:
    office = Office()
    text = office.issue(request())
    forged = text[:place] + letter + text[place + 1 :]
    if forged != text:
        assert not office.redeem(forged).returning


def test_each_of_many_holders_is_told_apart() -> None:
    office = Office(slots=5000)
    texts = {office.issue(request()) for _ in range(2000)}
    assert len(texts) == 2000
    assert all(office.redeem(text).returning for text in texts)


def test_a_tenant_name_that_is_no_text_is_bound_too() -> None:
    office = Office()
    odd = replace(request(), tenant="\udcff")
    text = office.issue(odd)
    assert office.redeem(text, tenant="\udcff").returning
    assert not office.redeem(office.issue(odd), tenant="\udcfe").returning
