"""Retries beyond the budget still go while a slot is free.

That they are refused otherwise is held by tests/unit/core/test_retry_budget.py: here a restart or a
lag of the machine, after which all retries count as invited, would decide.
"""

from __future__ import annotations

import asyncio

import pytest

from policy_server.core.retry_budget import START_RETRIES
from tests.support.live import Answer, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")


def retry(live: Live, tenant: str, count: str = "1") -> asyncio.Task[Answer]:
    return live.start_post(headers={"x-tenant-id": tenant, "x-stainless-retry-count": count})


async def test_with_a_slot_free_nobody_counts_retries(live: Live) -> None:
    tenant = f"free-{live.wiring}"
    for _ in range(START_RETRIES + 3):
        await live.until(waiting=0, inflight=0)
        assert (await retry(live, tenant)).status == 200
