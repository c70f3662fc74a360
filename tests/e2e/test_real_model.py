"""A real model, driven past what it can: MiniLM on the CPU behind the real Envoy.

A short form of the bench (`make bench ARGS=embeddings`). The bench holds .9 of the best fixed
limit, on a quiet machine; a run of seconds beside everything else that a test run does spreads too
much for that, so the bound here is .6: it finds a limit that collapses.
"""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from policy_server.load.results import LoadReport
from tests.support.minilm import MiniLm
from tests.support.real_model import (
    IMPATIENT,
    VEGAS,
    capacity_rps,
    in_front,
    overload,
    running_model,
)

FIXED: list[dict[str, object]] = [{"algorithm": "fixed", "initial": n} for n in (4, 16)]


def test_it_is_a_model() -> None:
    vectors, tokens = MiniLm().embed(
        ["A man is eating food.", "Someone eats a meal.", "The stock market fell today."]
    )
    assert tokens == 23
    alike, unlike = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert alike > 0.6
    assert unlike < 0.2


async def test_openais_client_gets_its_vectors_through_the_gateway(tmp_path: Path) -> None:
    async with running_model(tmp_path) as url, in_front(tmp_path, url, VEGAS) as stack:
        client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none")
        async with client:
            answer = await client.embeddings.create(model="m", input=["hello", "world"])
        assert [len(item.embedding) for item in answer.data] == [384, 384]
        assert sum(x * x for x in answer.data[0].embedding) == pytest.approx(1.0, abs=1e-3)
        await stack.until(waiting=0, inflight=0)


async def test_at_three_times_its_capacity_the_important_work_is_served(tmp_path: Path) -> None:
    async with running_model(tmp_path) as url:
        rate = 3 * await capacity_rps(url, 2)

        async def run(limit: dict[str, object]) -> LoadReport:
            async with in_front(tmp_path, url, limit, classes=IMPATIENT) as stack:
                return await overload(stack.url, (10, 4, 60), rate)

        ours = await run(VEGAS)
        best = max([(await run(limit)).measured.goodput_rps for limit in FIXED])
    ends = ours.overall.total.ends
    p0 = ours.overall.classes["P0"]
    assert ours.malformed == 0
    assert ends["served"] + ends["shed_429"] == ours.overall.total.sent  # nothing else happened
    assert ends["shed_429"] > 0
    assert p0.ends["served"] == p0.sent
    assert ours.measured.goodput_rps >= 0.6 * best
