"""A real chat model, driven past what it can: SmolLM2 in llama.cpp's server behind the real Envoy.

Four slots on one thread: an engine whose queue, `/metrics` page and streams are nobody's emulation.
"""

from __future__ import annotations

from pathlib import Path

import openai

from tests.support.real_model import (
    CHAT,
    IMPATIENT,
    VEGAS,
    capacity_rps,
    in_front,
    overload,
    running_model,
)
from tests.support.stack import Stack

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


async def test_openais_client_chats_through_the_gateway(tmp_path: Path) -> None:
    async with running_model(tmp_path, CHAT) as url, in_front(tmp_path, url, VEGAS, CHAT) as stack:
        async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none") as client:
            answer = await client.chat.completions.create(
                model="m", messages=QUESTION, max_tokens=12, temperature=0
            )
            streamed = await client.chat.completions.create(
                model="m", messages=QUESTION, max_tokens=12, temperature=0, stream=True
            )
            words = [c.choices[0].delta.content or "" async for c in streamed if c.choices]
        assert "Paris" in (answer.choices[0].message.content or "")
        assert "Paris" in "".join(words)
        await stack.until(waiting=0, inflight=0)


async def test_at_three_times_its_capacity_the_important_work_is_served(tmp_path: Path) -> None:
    async with running_model(tmp_path, CHAT) as url:
        rate = 3 * await capacity_rps(url, 3, CHAT)
        async with in_front(tmp_path, url, VEGAS, CHAT, classes=IMPATIENT) as stack:
            report = await overload(stack.url, (12, 4, 60), rate, CHAT)
            ends, p0 = report.overall.total.ends, report.overall.classes["P0"]
            assert report.malformed == 0
            assert ends["served"] + ends["shed_429"] == report.overall.total.sent
            assert ends["shed_429"] > 0
            assert p0.ends["served"] == p0.sent
            await _it_was_watched(stack)


async def _it_was_watched(stack: Stack) -> None:
    """The engine's own page was read, and its streams were seen token by token."""
    pool = await stack.pool()
    (page,) = pool["load_reports"]
    assert page["outcome"] == "used"
    async with stack.client.get(f"http://127.0.0.1:{stack.where['http']}/metrics") as answer:
        metrics = await answer.text()
    for name in ("policy_ttft_seconds_count", "policy_tpot_seconds_count"):
        (line,) = (line for line in metrics.splitlines() if line.startswith(name))
        assert float(line.rpartition(" ")[2]) > 0
