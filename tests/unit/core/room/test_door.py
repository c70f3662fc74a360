"""Who may enter the room, and who is told early that it waits in vain."""

from __future__ import annotations

import pytest

from policy_server.core.outcome import ShedReason
from policy_server.core.params import PoolParams, RoomParams
from policy_server.core.ramp import Ramp
from policy_server.core.request import PRIORITIES, Priority
from policy_server.core.room.door import UNSETTLED_S, Door
from policy_server.core.room.prediction import Predictor
from policy_server.core.room.rates import ENOUGH
from policy_server.core.room.room import Room
from tests.support.core_builders import P1, P2, pool_params, request

LIMIT = 10.0


class House:
    """A room with its door, in front of an engine that answers `per_s` requests per second."""

    def __init__(self, per_s: float = 10.0, **more: object) -> None:
        self.params: PoolParams = pool_params(LIMIT, **more)
        self.room = Room(self.params.room)
        self.predictor = Predictor([self.params.classes[p].share for p in PRIORITIES])
        self.predictor.drain.assume(per_s)
        self.door = Door(self.params, self.room, self.predictor, Ramp())
        self.count = 0

    def come(self, priority: Priority = P1, at: float = 0.0, **facts: object) -> ShedReason | None:
        self.count += 1
        newcomer = request(f"u{self.count}", priority, at=at, **facts)
        refused = self.door.look(newcomer, LIMIT, at)[1]
        if refused is None:
            self.room.enter(newcomer)
        return refused

    def fill(self, priority: Priority, at: float = 0.0, **facts: object) -> int:
        """As many as may come at one moment."""
        for count in range(10_000):
            if self.come(priority, at, **facts) is not None:
                return count
        raise AssertionError("everybody may come")


def test_as_many_may_come_as_are_served_in_time_whatever_chance_brings() -> None:
    # n + 1.9·√(n − 1) ≤ 10/s · .9 · 15 s
    assert House().fill(P1, budget_s=15.0) == pytest.approx(135 - 1.9 * 135**0.5, abs=3)


def test_who_cannot_wait_is_refused_and_who_has_no_forecast_is_not() -> None:
    assert House().come(budget_s=0.0) is ShedReason.PREDICTED_WAIT
    assert House(per_s=0.0).come(budget_s=0.001) is None


def test_right_after_a_restart_a_newcomer_may_be_one_who_waited_before_it() -> None:
    house = House()
    house.fill(P1, at=0.0, budget_s=15.0)
    house.door.restarted(0.0)
    assert house.come(at=2.9, budget_s=15.0) is None
    assert house.come(at=2.9, budget_s=0.0) is ShedReason.PREDICTED_WAIT
    assert house.come(at=3.1, budget_s=15.0) is ShedReason.PREDICTED_WAIT


def test_a_tenant_has_a_bound_of_its_own() -> None:
    house = House(room=RoomParams(tenant_max_requests=3))
    assert [house.come(tenant="a") for _ in range(4)] == [None] * 3 + [ShedReason.TENANT_LIMIT]
    assert house.come(tenant="b") is None


def test_a_lowest_class_refused_for_long_gets_a_quarter_of_its_budget() -> None:
    house = House()
    whole = house.fill(P2, at=0.0, budget_s=45.0)
    assert whole == pytest.approx(400, rel=0.1)
    for second in range(1, 60):  # refused all the time
        assert house.come(P2, at=float(second), budget_s=45.0) is ShedReason.PREDICTED_WAIT
    for ticket in list(house.room):
        house.room.leave(ticket.uid)
    assert house.fill(P2, at=60.0, budget_s=45.0) == pytest.approx(whole / 4, rel=0.15)


def test_a_pause_of_the_refusals_gives_the_whole_budget_back() -> None:
    """After a burst the line is long, because those come back who were told to."""
    house = House()
    whole = house.fill(P2, at=0.0, budget_s=45.0)
    for second in range(1, 60):
        house.come(P2, at=float(second), budget_s=45.0)
    house.room.leave("u1")
    assert house.fill(P2, at=66.0, budget_s=45.0) == 1  # as many as before the refusals
    assert len(house.room) == whole


def test_refusing_those_who_cannot_wait_makes_no_standing_line() -> None:
    house = House()
    for tenth in range(1_000):
        assert house.come(P2, at=tenth / 10, budget_s=0.05) is ShedReason.PREDICTED_WAIT
    assert house.fill(P2, at=100.0, budget_s=45.0) == pytest.approx(400, rel=0.1)


def test_a_standing_line_of_another_class_does_not() -> None:
    house = House()
    whole = house.fill(P1, at=0.0)
    for ticket in list(house.room)[1:]:
        house.room.leave(ticket.uid)
    assert 1 + house.fill(P1, at=500.0) == whole


def test_in_time_for_everybody_nobody_is_turned_away() -> None:
    house = House()
    house.fill(P1)
    house.fill(P2, budget_s=45.0)
    assert house.door.hopeless(LIMIT, 0.0) is None


def test_when_the_engine_slows_down_the_last_are_told_first() -> None:
    house = House()
    count = house.fill(P1)
    house.predictor.drain.assume(2.0)
    gone = []
    while (request_ := house.door.hopeless(LIMIT, 1.0)) is not None:
        gone.append(request_.uid)
        house.room.leave(request_.uid)
    assert gone == [f"u{count - i}" for i in range(len(gone))]
    left = len(house.room)
    assert 2.0 * 14.0 < left < 2.0 * 14.0 + 1.9 * left**0.5 + 3  # those who may yet make it


def test_that_others_press_is_no_reason_to_turn_anyone_away() -> None:
    house = House()
    house.fill(P1)
    for tick in range(600):
        house.predictor.note_arrival(PRIORITIES[0], tick / 10)
    assert house.door.hopeless(LIMIT, 0.0) is None


def test_without_early_drop_everybody_waits() -> None:
    house = House(early_drop=False)
    assert not any(house.come() for _ in range(1_000))
    assert house.door.hopeless(LIMIT, 0.0) is None


def test_one_slow_answer_sends_nobody_away_who_waits() -> None:
    house = House(per_s=0.0)
    for _ in range(2_000):
        assert house.come(P2, budget_s=60.0) is None
    house.predictor.drain.completed(4.0, 0.0)
    assert house.door.hopeless(LIMIT, 0.1) is None
    for _ in range(ENOUGH):
        house.predictor.drain.completed(4.0, 0.1)
    assert house.door.hopeless(LIMIT, 0.2) is not None


def test_for_a_while_after_a_restart_nobody_is_turned_away() -> None:
    house = House()
    house.fill(P1, budget_s=60.0)
    house.predictor.drain.assume(2.0)  # half the limit, and slots are kept for old places
    house.door.restarted(0.0)
    assert house.door.hopeless(LIMIT, UNSETTLED_S - 0.1) is None
    assert house.door.hopeless(LIMIT, UNSETTLED_S) is not None
