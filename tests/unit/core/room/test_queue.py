"""A class's line: who came first goes first, whatever else happens in the line."""

from __future__ import annotations

import pytest

from policy_server.core.room.queue import ClassQueue
from policy_server.core.room.ticket import Ticket
from tests.support.core_builders import request


def ticket(uid: str, sequence: int, at: float = 0.0, budget_s: float = 15.0) -> Ticket:
    return Ticket(request(uid, at=at, budget_s=budget_s), sequence)


def queue(*tickets: Ticket) -> ClassQueue:
    line = ClassQueue()
    for one in tickets:
        line.push(one)
    return line


def order(line: ClassQueue) -> list[str]:
    return [line.at(i).request.uid for i in range(len(line))]


def test_first_come_first_served_also_within_one_instant() -> None:
    line = queue(ticket("a", 1), ticket("b", 2), ticket("c", 3))
    assert order(line) == ["a", "b", "c"]
    assert line.head().request.uid == "a"


def test_a_place_from_before_a_restart_stands_where_it_stood() -> None:
    line = queue(ticket("new", 1, at=100.0), ticket("old", 2, at=90.0))
    assert order(line) == ["old", "new"]


def test_leaving_from_the_middle() -> None:
    middle = ticket("b", 2)
    line = queue(ticket("a", 1), middle, ticket("c", 3))
    line.remove(middle)
    assert order(line) == ["a", "c"]
    with pytest.raises(KeyError):
        line.remove(middle)


def test_the_earliest_deadline_need_not_be_the_first_in_line() -> None:
    line = queue(ticket("a", 1, budget_s=45.0), ticket("b", 2, budget_s=1.0))
    assert line.earliest_deadline() == 1.0
    assert line.expired(0.9) is None
    expired = line.expired(1.0)
    assert expired is not None
    assert expired.request.uid == "b"


def test_an_empty_line() -> None:
    line = ClassQueue()
    assert len(line) == 0
    assert line.earliest_deadline() is None
    assert line.expired(1e9) is None
    with pytest.raises(IndexError):
        line.head()
