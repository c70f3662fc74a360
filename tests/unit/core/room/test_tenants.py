"""Fair turns: a flood waits behind itself, whoever it is, and nobody gains by a trick."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.core.request import UNKNOWN_TENANT
from policy_server.core.room.tenants import FADE_S, REMEMBERED, Costs, FairLines
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
    line.fair.correct("a", -COST, 0.0)
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


@pytest.mark.parametrize("line_of", ["", UNKNOWN_TENANT])
def test_strangers_cannot_pass_each_other_by_a_shorter_wait(line_of: str) -> None:
    line = Line()
    line.push(line_of, budget_s=60.0)
    line.push(line_of, budget_s=10.0)
    assert [line.serve(), line.serve()] == [f"{line_of}-1", f"{line_of}-2"]


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


def test_a_tenant_alone_may_count_on_the_whole_drain() -> None:
    fair = FairLines()
    assert fair.part("a", 10.0, 0.0) == 1.0
    fair.charge("a", 100.0, 0.0)
    assert fair.part("a", 10.0, 0.0) == 1.0


def spent(**calls_per_s: float) -> FairLines:
    """The tenants have taken their calls of 100 tokens for five minutes."""
    fair = FairLines()
    for tick in range(3_000):
        for tenant, rate in calls_per_s.items():
            fair.correct(tenant, 100.0 * rate * 0.1, tick * 0.1)
    fair.costs.saw("a", 100.0)
    return fair


def test_a_flood_may_count_on_what_it_takes_and_the_calm_on_a_fair_part() -> None:
    calm = {f"t{n}": 0.8 for n in range(9)}
    fair = spent(flood=2.8, **calm)
    assert fair.part("flood", 10.0, 300.0) == pytest.approx(0.28, abs=0.01)
    assert 0.1 < fair.part("t1", 10.0, 300.0) < 0.16


def test_whoever_comes_anew_may_count_on_what_the_others_leave() -> None:
    fair = spent(a=2.0, b=3.0)
    assert fair.part("new", 10.0, 300.0) == pytest.approx(0.5, abs=0.01)
    assert fair.part("new", 4.0, 300.0) == pytest.approx(1 / 3, abs=0.03)  # they leave nothing


def test_what_a_tenants_request_costs_is_known_in_those_of_the_mean_in_bounded_memory() -> None:
    costs = Costs()
    assert costs.relative("a") == 1.0
    for number in range(1_000):  # ten short ones to each long one
        costs.saw("long" if number % 11 == 0 else "short", 1_100.0 if number % 11 == 0 else 100.0)
    assert costs.relative("long") / costs.relative("short") == pytest.approx(11.0)
    assert costs.mean == pytest.approx(190.0, rel=0.3)
    assert costs.relative("new") == 1.0
    for number in range(2 * REMEMBERED):
        costs.saw(f"t{number}", 0.0)
    assert len(costs) == REMEMBERED
    assert costs.relative("t1") == 1.0


def test_its_sums_follow_what_is_forgotten_and_brought_down() -> None:
    fair = FairLines({"t7": 3.0})
    for index in range(2 * REMEMBERED):
        fair.charge(f"t{index}", 10.0, index * 0.1)
    fair.reweigh({"t9": 2.0})
    fair.restore("again", 77.0, 100.0)
    kept = [(v, fair.weights.get(t, 1.0)) for t, v in fair._counters.items()]
    assert fair._used == pytest.approx(sum(v * w for v, w in kept))
    assert fair._squared == pytest.approx(sum(v * v * w for v, w in kept))


def test_a_newcomer_leads_when_its_turn_is_before_all_others() -> None:
    line = Line()
    assert line.fair.leads(request("x", tenant="new"))
    line.push("flood", 3)
    assert not line.fair.leads(request("x", tenant="flood"))
    assert not line.fair.leads(request("x", tenant="new"))  # level with it: first come
    line.fair.charge("flood", COST, 0.0)
    assert line.fair.leads(request("x", tenant="new"))
    line.fair.charge("new", 2 * COST, 0.0)
    assert not line.fair.leads(request("x", tenant="new"))


def max_min(demands: dict[str, float], capacity: float) -> dict[str, float]:
    """The oracle: fill all glasses alike; who is full leaves the rest to the others."""
    given, thirsty, left = dict.fromkeys(demands, 0.0), dict(demands), capacity
    while thirsty and left > 1e-9:
        level = left / len(thirsty)
        full = {t: d for t, d in thirsty.items() if d - given[t] <= level}
        for tenant in full or dict(thirsty):
            part = thirsty[tenant] - given[tenant] if full else level
            given[tenant] += part
            left -= part
        if not full:
            break
        thirsty = {t: d for t, d in thirsty.items() if t not in full}
    return given


@given(st.lists(st.floats(0.02, 2.0), min_size=2, max_size=6))
@settings(deadline=None, max_examples=30)
def test_in_the_long_run_everybody_gets_the_max_min_share(demands: list[float]) -> None:
    """One served per tick; each tenant asks for `demand` calls per tick, at regular times."""
    line, wanted, ticks = Line(), dict.fromkeys("abcdef"[: len(demands)], 0.0), 3_000
    served = dict.fromkeys(wanted, 0)
    for tick in range(ticks):
        line.now = 0.05 * tick
        for tenant, demand in zip(wanted, demands, strict=True):
            wanted[tenant] += demand
            if wanted[tenant] >= 1.0 and line.fair.waiting(tenant) < 50:
                line.push(tenant, int(wanted[tenant]))
            wanted[tenant] %= 1.0
        if len(line.fair):
            served[line.serve().split("-")[0]] += 1
    fair = max_min(dict(zip(wanted, demands, strict=True)), 1.0)
    for tenant, part in fair.items():
        assert served[tenant] / ticks == pytest.approx(part, abs=0.03)


def test_a_million_tenants_who_come_and_leave_leave_nothing() -> None:
    line = Line()
    line.push("stays")
    for index in range(3 * REMEMBERED):
        ticket = Ticket(request(f"u{index}", tenant=f"t{index}"), index + 2)
        line.fair.push(ticket)
        line.fair.remove(ticket)
    assert len(line.fair._counters) == 1
    for index in range(3 * REMEMBERED):
        line.fair.charge(f"t{index}", 10.0, 0.0)
    assert len(line.fair._counters) == REMEMBERED + 1  # who waits is not forgotten
