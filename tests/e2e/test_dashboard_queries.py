"""Every query of the dashboard and of the alert rules against the metrics page of a policy server
that has served."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.observability import NOT_EXPORTED_YET, expressions
from tests.support.promql import Page, mistakes, page_of
from tests.support.stack import Stack, chat, running_stack

CHAT = "/v1/chat/completions"
KNOWN_BACKENDS = {"pools": [{"backends": {"count": 1}}]}


async def served_page(stack: Stack) -> Page:
    """The page, once an engine's own word of its queue has been heard."""
    async with asyncio.timeout(30):
        while True:
            async with stack.client.post(stack.url + CHAT, json=chat()) as answer:
                assert answer.status == 200
                await answer.read()
            async with stack.client.get(f"http://127.0.0.1:{stack.where['http']}/metrics") as text:
                page = page_of(await text.text())
            if "policy_engine_queue" in page:
                return page


async def test_every_query_has_an_answer(tmp_path: Path) -> None:
    async with running_stack(tmp_path, KNOWN_BACKENDS, backend=("--orca",)) as stack:
        page = await served_page(stack)
    unanswered = {
        where: found
        for where, expression in expressions().items()
        if (found := mistakes(expression, page, NOT_EXPORTED_YET))
    }
    assert unanswered == {}
    assert not NOT_EXPORTED_YET & page.keys(), "exported by now: take it off the list"
