"""A long prompt weighs more than one seat, by what such bodies turned out to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.admission import Admission
from policy_server.core.events import Admitted
from policy_server.core.request import Request
from policy_server.core.samples import Usage
from policy_server.core.seats import ENOUGH, FIRST_PROMPT, MAX_SEATS, PromptSizes, Seats
from tests.support.core_builders import OK, admission, only, pool_params, request

IMAGE = 3_000_000


def sent(body_bytes: int) -> Request:
    """As the gate classifies it: bytes / 4, at most 32k tokens."""
    return request("x", body_bytes=body_bytes, prompt_tokens=min(body_bytes // 4, 32_768))


def usual(seats: Seats, answers: int = 200) -> Seats:
    for _ in range(answers):
        seats.saw(sent(1_600), 400, 200)
    return seats


def test_until_answers_were_seen_everybody_weighs_one() -> None:
    assert Seats().of(sent(400_000), 100.0, 1_000.0) == 1
    assert usual(Seats(), ENOUGH - 1).of(sent(400_000), 100.0, 1_000.0) == 1


def test_a_prompt_many_times_the_usual_weighs_more() -> None:
    seats = usual(Seats())  # 600 tokens in the mean: a seat is good for 1500
    weights = [seats.of(sent(4 * tokens), 200.0, 1_000.0) for tokens in (400, 1_000, 2_900, 5_900)]
    assert weights == [1, 1, 2, 4]
    assert seats.of(sent(4 * 30_000), 200.0, 1_000.0) == MAX_SEATS


def test_nobody_weighs_more_than_a_quarter_of_the_limit() -> None:
    seats = usual(Seats())
    assert [seats.of(sent(400_000), 0.0, limit) for limit in (1.0, 7.9, 8.0, 16.0)] == [1, 1, 2, 4]


def test_an_image_is_not_a_long_prompt() -> None:
    seats = usual(Seats())
    assert seats.of(sent(IMAGE), 200.0, 1_000.0) == MAX_SEATS
    for _ in range(3):
        seats.saw(sent(IMAGE), 900, 200)
    assert seats.of(sent(IMAGE), 200.0, 1_000.0) == 1
    assert seats.prompts.tokens(sent(IMAGE)) == pytest.approx(900, rel=0.1)
    assert seats.of(sent(4 * 7_000), 200.0, 1_000.0) == 4  # bodies of other sizes are as before


def test_a_body_of_unknown_length_counts_as_the_median() -> None:
    sizes = PromptSizes()
    assert sizes.tokens(sent(0)) == FIRST_PROMPT
    for number in range(600):
        sizes.saw(sent(1_600), 8_000 if number % 3 == 0 else 400)
    assert sizes.tokens(sent(0)) == pytest.approx(400, rel=0.3)


def test_where_no_answer_tells_its_prompt_the_length_of_the_body_counts() -> None:
    seats = Seats()
    for _ in range(200):
        seats.saw(sent(1_600), 0, 200)
    weights = [seats.of(sent(4 * tokens), 200.0, 1_000.0) for tokens in (400, 1_000, 2_900, 5_900)]
    assert weights == [1, 1, 2, 4]


def test_usage_without_a_prompt_tells_nothing_of_prompts() -> None:
    seats = Seats()
    for tokens in (0, -5):
        seats.saw(sent(1_600), tokens, 100)
    assert seats.prompts.tokens(sent(1_600)) == 400.0


@given(
    st.lists(st.tuples(*(st.integers(-1, 1 << bits) for bits in (60, 40, 30)))),
    st.integers(0, 1 << 60),
    st.floats(1.0, 1e6),
)
def test_whatever_is_claimed_or_told_the_weight_is_bounded(
    told: list[tuple[int, int, int]], length: int, limit: float
) -> None:
    seats = usual(Seats())
    for body_bytes, prompt, output in told:
        seats.saw(sent(max(0, body_bytes)), prompt, output)
    assert 1 <= seats.of(sent(length), 100.0, limit) <= max(1, min(MAX_SEATS, limit / 4))
    assert len(seats.prompts._ratio) <= 49


def answered(gate: Admission, uid: str, body_bytes: int, at: float) -> None:
    gate.submit(request(uid, at=at, body_bytes=body_bytes, prompt_tokens=body_bytes // 4), at)
    gate.usage(uid, Usage(body_bytes // 4, 200))
    gate.complete(uid, OK, at + 0.5)


def test_a_forged_length_takes_a_quarter_of_the_seats_and_blocks_nobody() -> None:
    gate = admission(pool_params(16.0))
    for number in range(ENOUGH + 5):
        answered(gate, f"warm{number}", 1_600, float(number))
    liar = request("liar", at=100.0, body_bytes=1 << 40, prompt_tokens=32_768)
    assert only(Admitted, gate.submit(liar, 100.0))
    assert gate.pool("chat").leases.seats == 4
    honest = [gate.submit(request(f"h{n}", at=100.0, body_bytes=1_600), 100.0) for n in range(12)]
    assert all(only(Admitted, events) for events in honest)


def test_a_tenant_is_charged_for_what_its_prompt_was() -> None:
    gate = admission(pool_params(2.0))
    facts = {"tenant": "a", "body_bytes": IMAGE, "prompt_tokens": 32_768}
    gate.submit(request("image", at=0.0, **facts), 0.0)
    gate.usage("image", Usage(900, 128))
    gate.complete("image", OK, 0.0)
    turn = gate.pool("chat").room._queues[1].fair.turn("a")
    assert turn is not None
    assert turn[0] == pytest.approx(900 + 2 * 128)
