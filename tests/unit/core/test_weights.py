"""What a tenant is charged is what its answers took, whoever of them was observed."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, Event
from policy_server.core.lengths import (
    FIRST_OUTPUT,
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_TENANTS,
    AnswerLengths,
)
from policy_server.core.request import Kind, Request
from policy_server.core.room.tenants import FADE_S
from policy_server.core.samples import Completion, Usage
from policy_server.core.seats import ENOUGH, FIRST_PROMPT
from tests.support.core_builders import (
    CLIENT_LEFT,
    NEVER_SENT,
    OK,
    UPSTREAM_503,
    admission,
    only,
    pool_params,
    request,
    run_timers,
    uids,
)

PROMPT = 250
PACE = 100.0  # tokens per second of each answer, as in one batch


def counter(gate: Admission, tenant: str) -> float:
    """What its tenant is charged, tokens of the moment of the first charge."""
    turn = gate.pool("chat").room.turns()[1].turn(tenant)
    return 0.0 if turn is None else turn[0]


def lengths(gate: Admission) -> AnswerLengths:
    return gate.pool("chat").weights.lengths


def answer(gate: Admission, uid: str, at: float, seconds: float, **facts: object) -> None:
    """One answer of which nothing was seen but its end."""
    gate.submit(request(uid, at=at, **facts), at)
    gate.complete(uid, OK, at + seconds)


def stream(gate: Admission, uid: str, at: float, events: int, **facts: object) -> None:
    """One observed stream at the usual pace, without `usage`."""
    gate.submit(request(uid, at=at, streamed=True, **facts), at)
    gate.tokens(uid, events, at + events / PACE)


class Backlog:
    """Two tenants who always wait, on an engine of 20 slots; a part of their answers is seen."""

    def __init__(self, answers: dict[str, int], seen: float, usage: bool, **asks: int) -> None:
        self._gate = admission(pool_params(20.0))
        self._answers, self._seen, self._usage, self._asks = answers, seen, usage, asks
        self._live: list[tuple[float, Request]] = []
        self._rng = random.Random(3)
        self.cost: Counter[str] = Counter()

    def run(self, seconds: int) -> float:
        """How much more the one who got more got, of prompt + 2 · output."""
        for tick in range(1, seconds * 5):
            now = tick * 0.2
            self._begin(self._gate.handle_timer(now), now)
            for tenant in self._answers:
                if self._gate.pool("chat").room.tenants()[tenant] < 20:
                    self._begin(self._gate.submit(self._request(tenant, tick, now), now), now)
            for due in [d for d in self._live if d[0] <= now]:
                self._live.remove(due)
                self._end(due[1], now)
        return max(self.cost.values()) / min(self.cost.values())

    def _request(self, tenant: str, tick: int, now: float) -> Request:
        facts = {"tenant": tenant, "body_bytes": 4 * PROMPT, "prompt_tokens": PROMPT}
        return request(f"{tenant}{tick}", at=now, budget_s=1e6, **facts, **self._asks)

    def _begin(self, events: list[Event], now: float) -> None:
        for event in only(Admitted, events):
            seconds = self._answers[event.request.tenant] / PACE
            self._live.append((now + seconds, event.request))

    def _end(self, ended: Request, now: float) -> None:
        output = self._answers[ended.tenant]
        self.cost[ended.tenant] += PROMPT + 2 * output
        if self._rng.random() < self._seen:
            self._gate.tokens(ended.uid, output, now)
            if self._usage:
                self._gate.usage(ended.uid, Usage(PROMPT, output))
        self._begin(self._gate.complete(ended.uid, OK, now), now)


@pytest.mark.parametrize("seen", [1.0, 0.1, 0.02])
@pytest.mark.parametrize("usage", [True, False])
def test_long_and_short_answers_get_the_same_tokens_however_few_are_seen(
    seen: float, usage: bool
) -> None:
    assert Backlog({"long": 2000, "short": 200}, seen, usage).run(300) < 1.3


def test_a_limit_that_the_engine_does_not_obey_gains_nothing() -> None:
    assert Backlog({"long": 2000, "short": 200}, 0.02, True, max_tokens=1).run(300) < 1.3


def test_streams_without_usage_teach_lengths_and_seats() -> None:
    gate = admission()
    for number in range(50):
        at = 20.0 * number
        stream(gate, f"u{number}", at, 1000, tenant="a")
        gate.complete(f"u{number}", OK, at + 10.0)
    assert lengths(gate).mean == pytest.approx(1000, rel=0.1)
    long = request("long", body_bytes=400_000, prompt_tokens=100_000)
    assert gate.pool("chat").weights.weigh(long, 1000.0).seats == 8


def test_events_that_carry_several_tokens_are_counted_as_such() -> None:
    gate = admission()
    for number in range(30):
        stream(gate, f"told{number}", 10.0 * number, 100, tenant="told")
        gate.usage(f"told{number}", Usage(PROMPT, 300))
        gate.complete(f"told{number}", OK, 10.0 * number + 1.0)
        stream(gate, f"mute{number}", 10.0 * number + 2.0, 100, tenant="mute")
        gate.complete(f"mute{number}", OK, 10.0 * number + 3.0)
    for tenant in ("told", "mute"):
        asked = lengths(gate).expected(request("x", tenant=tenant))
        assert asked == pytest.approx(300, rel=0.05)


def test_a_tenant_is_charged_at_dispatch_for_the_answers_it_usually_gets() -> None:
    gate = admission(pool_params(10.0, observe_messages_per_s=0.0))
    for number in range(100):
        answer(gate, f"a{number}", 10.0 * number, 8.0, tenant="a")
        answer(gate, f"b{number}", 10.0 * number + 9.0, 0.5, tenant="b")
    known = lengths(gate)
    a, b = (known.expected(request("x", tenant=tenant)) for tenant in ("a", "b"))
    assert a / b == pytest.approx(16, rel=0.05)
    assert known.expected(request("x", tenant="new")) == known.mean == FIRST_OUTPUT


def test_where_observed_answers_tell_nothing_all_are_charged_alike() -> None:
    """By time the turns would go by chance: a few milliseconds more or less."""
    gate = admission()
    for number in range(100):
        answer(gate, f"a{number}", 10.0 * number, 8.0, tenant="a")
        answer(gate, f"b{number}", 10.0 * number + 9.0, 0.5, tenant="b")
    known = lengths(gate)
    assert {known.expected(request("x", tenant=tenant)) for tenant in ("a", "b")} == {FIRST_OUTPUT}


def test_nobody_is_charged_for_more_than_it_asks_for() -> None:
    known = AnswerLengths()
    assert known.expected(request("x", max_tokens=16)) == 16
    assert known.expected(request("x", max_tokens=10_000)) == FIRST_OUTPUT
    assert known.usual(request("x", max_tokens=16)) == 16


def test_the_lengths_of_a_million_tenants_take_bounded_memory() -> None:
    gate = admission()
    for number in range(MAX_TENANTS + 50):
        answer(gate, f"u{number}", 1.0 * number, 0.5, tenant=f"t{number}")
    assert len(lengths(gate)) == MAX_TENANTS


def test_no_answer_counts_for_more_than_a_model_can_write() -> None:
    gate = admission()
    gate.submit(request("liar", tenant="a"), 0.0)
    gate.usage("liar", Usage(10**12, 10**12))
    gate.complete("liar", OK, 1.0)
    assert FIRST_OUTPUT < lengths(gate).mean <= FIRST_OUTPUT + 0.05 * MAX_OUTPUT_TOKENS
    assert counter(gate, "a") < 2.1 * (MAX_OUTPUT_TOKENS + MAX_PROMPT_TOKENS)


# -- how the slot was given back -----------------------------------------------------------------


def ended(completion: Completion, seconds: float, kind: Kind = Kind.HELD) -> float:
    """What is charged for one request, tokens as of its dispatch, where the pace is known."""
    gate = admission()
    for number in range(20):
        stream(gate, f"w{number}", 10.0 * number, 100, tenant="other")
        gate.complete(f"w{number}", OK, 10.0 * number + 1.0)
    gate.submit(request("x", at=200.0, tenant="a", kind=kind), 200.0)
    gate.complete("x", completion, 200.0 + seconds)
    pool = gate.pool("chat")
    turns = pool.jobs._turns[1] if kind is Kind.JOB else pool.room.turns()[1]
    charged = turns.turn("a")
    assert charged is not None
    return charged[0] / math.exp((200.0 - charged[1]) / FADE_S)


@pytest.mark.parametrize("kind", Kind)
def test_who_never_reached_the_engine_is_charged_nothing(kind: Kind) -> None:
    assert ended(NEVER_SENT, 20.0, kind=kind) == pytest.approx(0.0, abs=1e-6)


def test_an_answer_that_failed_at_once_costs_its_prompt() -> None:
    assert ended(UPSTREAM_503, 0.0) == pytest.approx(FIRST_PROMPT, rel=0.5)


def test_a_client_that_left_pays_for_the_time_it_took() -> None:
    whole, left = (ended(how, 10.0) for how in (OK, CLIENT_LEFT))
    assert left == pytest.approx(whole)
    assert left > 2 * 0.9 * 10.0 * PACE


def test_what_is_paid_back_is_what_has_not_faded() -> None:
    alone, both = admission(), admission()
    for gate, names in ((alone, "x"), (both, "xy")):
        for name in names:
            gate.submit(request(name, tenant="a"), 0.0)
    both.complete("y", NEVER_SENT, 20.0)
    assert counter(both, "a") == pytest.approx(counter(alone, "a"))


def test_an_end_that_nobody_saw_and_an_answer_of_before_a_restart_correct_nothing() -> None:
    gate = admission()
    answer(gate, "first", 0.0, 1.0, tenant="a")
    gate.submit(request("lost", at=2.0, tenant="a", node="n"), 2.0)
    gate.restore_lease(request("old", at=0.0, tenant="a", node="n"), 0.0, 2.0)
    charged = counter(gate, "a")
    gate.complete("old", OK, 10.0)
    gate.node_alive("n", 60.0)
    assert uids(run_timers(gate, 10.0, 70.0)) == ["lost"]
    assert counter(gate, "a") == charged


def test_a_tunnel_that_was_open_for_a_year_counts_no_more_than_an_answer_may() -> None:
    gate = admission()
    stream(gate, "short", 0.0, 100, tenant="b")
    gate.complete("short", OK, 1.0)
    answer(gate, "tunnel", 1.0, 3e7, tenant="a")
    assert lengths(gate).expected(request("x", tenant="a")) <= MAX_OUTPUT_TOKENS


def test_only_answers_that_succeeded_teach_how_long_answers_are() -> None:
    gate = admission()
    for number in range(10):
        answer(gate, f"u{number}", 10.0 * number, 1.0, tenant="a")
    usual = lengths(gate).expected(request("x", tenant="a"))
    for number, end in enumerate([UPSTREAM_503, CLIENT_LEFT, Completion(400), NEVER_SENT]):
        at = 200.0 + 10.0 * number
        gate.submit(request(f"v{number}", at=at, tenant="a"), at)
        gate.complete(f"v{number}", end, at + 5.0)
    assert lengths(gate).expected(request("x", tenant="a")) == usual


def test_where_weights_are_known_too_an_old_weight_is_fitted_into_the_limit() -> None:
    gate = admission()
    for number in range(ENOUGH):
        stream(gate, f"u{number}", 20.0 * number, 100)
        gate.complete(f"u{number}", OK, 20.0 * number + 1.0)
    weights = gate.pool("chat").weights
    assert [weights.weigh(request("x", seats=8), limit).seats for limit in (8.0, 40.0)] == [2, 8]
