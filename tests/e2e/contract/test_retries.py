"""A storm of retries is refused first and told to stop; others do not feel it."""

from __future__ import annotations

import asyncio

import pytest

from policy_server.core.retry_budget import START_RETRIES
from tests.e2e.contract.conftest import Answer, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")


def retry(live: Live, tenant: str, count: str = "1") -> asyncio.Task[Answer]:
    return live.start_post(headers={"x-tenant-id": tenant, "x-stainless-retry-count": count})


async def test_a_storm_of_retries_hurts_only_its_tenant(live: Live) -> None:
    first = await live.busy()
    storm = f"storm-{live.wiring}"
    held = [retry(live, storm, "9" * n) for n in range(1, START_RETRIES + 1)]
    await live.until(waiting=START_RETRIES, inflight=1)
    refused = await retry(live, storm)
    assert refused.status == 429
    assert refused.headers["x-policy-reason"] == "retry_budget"
    assert refused.headers["x-should-retry"] == "false"
    assert "x-queue-ticket" not in refused.headers
    assert refused.headers["ratelimit"].startswith('"tenant";r=0;t=')
    held += [retry(live, "calm"), live.start_post(headers={"x-tenant-id": storm})]
    await live.until(waiting=START_RETRIES + 2, inflight=1)
    live.echo.finish.set()
    answers = await asyncio.gather(first, *held)
    assert {answer.status for answer in answers} == {200}


async def test_with_a_slot_free_nobody_counts_retries(live: Live) -> None:
    tenant = f"free-{live.wiring}"
    for _ in range(START_RETRIES + 3):
        await live.until(waiting=0, inflight=0)
        assert (await retry(live, tenant)).status == 200
