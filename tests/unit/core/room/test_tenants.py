"""Fair turns: a flood waits behind itself, whoever it is, and nobody gains by a trick."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.room.tenants import FADE_S, REMEMBERED, FairLines
from policy_server.core.room.ticket import Ticket
from tests.support.core_builders import request

COST = 100.0


class Line:
    """Lines whose requests all cost the same, and a clock."""

    def __init__(self, **weights: float) -> None:
        self.fair = FairLines(weights)
        self.now = 0.0
        self.count = 0

    def push(self, tenant: str, times: int = 1, budget_s: float = 1e6) -> None:
        for _ in range(times):
            self.count += 1
            facts = {"tenant": tenant, "at": self.now, "budget_s": budget_s}
            self.fair.push(Ticket(request(f"{tenant}-{self.count}", **facts), self.count))

    def serve(self, cost: float = COST) -> str:
        ticket = self.fair.head()
        self.fair.remove(ticket)
        self.fair.charge(ticket.request.tenant, cost, self.now)
        return ticket.request.uid

    def tenants(self, times: int) -> list[str]:
        return [self.serve().split("-")[0] for _ in range(times)]


def test_a_fan_out_waits_behind_itself() -> None:
    line = Line()
    line.push("agent", 2_200)
    line.tenants(10)
    line.push("human")
    assert line.tenants(1) == ["human"]


def test_backlogged_tenants_take_turns() -> None:
    line = Line()
    for tenant in "abc":
        line.push(tenant, 100)
    served = line.tenants(90)
    assert {tenant: served.count(tenant) for tenant in "abc"} == {"a": 30, "b": 30, "c": 30}


def test_a_weight_of_three_is_three_turns() -> None:
    line = Line(big=3.0)
    line.push("big", 400)
    line.push("small", 400)
    served = line.tenants(200)
    assert served.count("big") == pytest.approx(150, abs=2)


def test_long_answers_are_charged_for_their_length() -> None:
    line = Line()
    line.push("long", 100)
    line.push("short", 100)
    served = {"long": 0.0, "short": 0.0}
    for _ in range(60):
        tenant = line.serve(0.0).split("-")[0]
        cost = 300.0 if tenant == "long" else 100.0
        line.fair.charge(tenant, cost, 0.0)
        served[tenant] += cost
    assert served["long"] == pytest.approx(served["short"], rel=0.1)


def test_an_answer_shorter_than_expected_is_paid_back() -> None:
    line = Line()
    line.push("a", 2)
    line.push("b", 2)
    line.tenants(2)
    line.fair.charge("a", -COST, 0.0)
    assert line.tenants(2) == ["a", "b"]


def test_what_was_used_fades() -> None:
    line = Line()
    line.push("old", 2)
    line.serve(1_000.0)
    line.now = 10 * FADE_S  # e^-10 of a thousand tokens: next to nothing
    line.push("new", 2)
    line.serve(1.0)
    assert line.tenants(1) == ["old"]


def test_a_night_of_idling_earns_no_more_than_half_a_minute() -> None:
    line = Line()
    line.push("busy", 10_000)
    for _ in range(600):
        line.serve()
        line.now += 0.1
    line.now += 8 * 3600.0
    line.push("sleeper", 10_000)
    served = line.tenants(1_000)
    assert served.count("busy") == pytest.approx(500, abs=1)


def test_within_a_tenant_the_earliest_deadline_goes_first() -> None:
    line = Line()
    line.push("a", budget_s=60.0)
    line.push("a", budget_s=10.0)
    assert [line.serve(), line.serve()] == ["a-2", "a-1"]


def test_strangers_cannot_pass_each_other_by_a_shorter_wait() -> None:
    line = Line()
    line.push("", budget_s=60.0)
    line.push("", budget_s=10.0)
    assert [line.serve(), line.serve()] == ["-1", "-2"]


def test_a_million_tenants_leave_ten_thousand_numbers() -> None:
    fair = FairLines()
    for index in range(3 * REMEMBERED):
        fair.charge(f"t{index}", 10.0, index * 1e-3)
    assert len(fair._counters) == REMEMBERED
    assert len(fair) == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(-500, 500), st.floats(0, 400))))
def test_the_order_of_turns_is_the_order_of_the_faded_charges(
    charges: list[tuple[str, float, float]],
) -> None:
    """Against the plain definition, over epochs that have to move."""
    line, plain, now = Line(), dict.fromkeys("abcd", 0.0), 0.0
    for tenant in "abcd":
        line.push(tenant, 1)
    for tenant, tokens, pause in charges:
        now += pause
        plain = {t: v * math.exp(-pause / FADE_S) for t, v in plain.items()}
        plain[tenant] = max(0.0, plain[tenant] + tokens)
        line.fair.charge(tenant, tokens, now)
    order = [line.serve(0.0).split("-")[0] for _ in range(4)]
    values = [plain[tenant] for tenant in order]
    assert all(a <= b + 1e-6 * (1 + b) for a, b in pairwise(values))
