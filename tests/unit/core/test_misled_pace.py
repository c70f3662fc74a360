"""A pace learned of answers of another kind does not rule those that come after them."""

from __future__ import annotations

import random

import pytest

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted, Event, Shed
from policy_server.core.params import LimitParams
from policy_server.core.samples import Completion, Usage
from tests.support.core_builders import admission, pool_params, request

STEP_S = 0.03


class Crowd:
    """Clients who always want one more streamed answer of an engine that no load slows down."""

    def __init__(self) -> None:
        self.gate: Admission = admission(pool_params(LimitParams()))
        self.now = 0.0
        self._live: dict[str, list[int]] = {}  # uid → tokens that it will have, and has
        self._rng = random.Random(1)
        self._sent = 0

    def go(self, seconds: float, clients: int, per_step: int = 1) -> float:
        """The limit after so long with `per_step` tokens in each step of an answer."""
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            if (due := self.gate.next_timer()) is not None and due <= self.now:
                self._take(self.gate.handle_timer(self.now))
            while len(self._live) + self.gate.waiting() < clients:
                self._sent += 1
                one = request(f"u{self._sent}", at=self.now, streamed=True, model="m")
                events = self.gate.submit(one, self.now)
                self._take(events)
                if any(isinstance(event, Shed) for event in events):
                    break
            self._step(per_step)
        return self.gate.pool("chat").limit.current

    def _step(self, per_step: int) -> None:
        for uid, told in list(self._live.items()):
            told[1] += 1
            self.gate.tokens(uid, per_step, self.now)
            if told[1] >= told[0]:
                del self._live[uid]
                took_s = told[0] * STEP_S
                end = Completion(200, first_byte_s=STEP_S, last_byte_s=took_s)
                self._take(self.gate.complete(uid, end, self.now))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Admitted):
                self._live[event.request.uid] = [self._rng.randint(60, 200), 0]


def test_a_limit_cut_by_a_pace_that_is_not_its_engines_is_back_within_a_minute() -> None:
    crowd = Crowd()
    crowd.go(12.0, clients=4, per_step=8)
    assert crowd.go(8.0, clients=60) < 16.0
    assert crowd.go(52.0, clients=60) >= 60.0
    assert crowd.gate.pool("chat").feedback.baselines.tpot("m") == pytest.approx(STEP_S, rel=0.01)


def test_a_message_without_a_token_costs_us_as_much_as_one_with() -> None:
    gate = admission(pool_params(16.0))
    gate.submit(request("a", streamed=True), 0.0)
    sampler = gate.pool("chat").feedback.sampler
    assert gate.lease("a") is not None
    for _ in range(800):
        gate.tokens("a", 0, 1.0)
    lease = gate.lease("a")
    assert lease is not None
    assert lease.first_token is None
    few = sampler.probability(streamed=True, live=1000)
    sampler.close_window(1.0, 1, 0.0)
    assert sampler.probability(streamed=True, live=1000) < few


def test_all_choices_are_charged_whether_their_tokens_are_told_or_counted() -> None:
    gate = admission(pool_params(16.0))
    lengths = gate.pool("chat").weights.lengths
    for uid, usage in (("told", Usage(9, 800, choices=8)), ("counted", Usage(0, 0, choices=8))):
        gate.submit(request(uid, streamed=True), 0.0)
        gate.tokens(uid, 100, 1.0)
        gate.usage(uid, usage)
        lease = gate.lease(uid)
        assert lease is not None
        assert lengths.told(lease) == 800
        gate.complete(uid, Completion(200, first_byte_s=1.0, last_byte_s=3.0), 3.0)
    gate.submit(request("one", streamed=True), 4.0)  # those before teach it no other ratio
    gate.tokens("one", 100, 5.0)
    one = gate.lease("one")
    assert one is not None
    assert lengths.told(one) == 100
