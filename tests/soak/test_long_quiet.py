"""Envoy outlives a stream that ends after nobody has asked for a minute.

Envoy forgets a gRPC client that no request has used for 50 s. A stream of that client that ends
later must not take Envoy along; with the graceful close of ext_proc streams, Envoy 1.40 died of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from policy_server.envoy_config.options import Wiring
from tests.e2e.contract.conftest import WIRINGS, running_live
from tests.support.live import Answer, Live

Calls = tuple[asyncio.Task[Answer], asyncio.Task[Answer]]

QUIET_S = 55.0
"""Longer than Envoy's 50 s, shorter than the longest wait of the stack (60 s)."""


@asynccontextmanager
async def after_a_long_quiet(wiring: Wiring, folder: Path) -> AsyncIterator[tuple[Live, Calls]]:
    """One call is being answered, one waits, and for a while nobody has asked; Envoy lives on."""
    async with running_live(wiring, folder) as live:
        calls = await live.busy("/half"), live.start_post()
        await live.until(waiting=1, inflight=1)
        await asyncio.sleep(QUIET_S)
        yield live, calls
        await live.until(waiting=0, inflight=0)
        live.echo.finish.set()
        assert (await live.post()).status == 200
        assert live.envoys["near"].process.returncode is None


@pytest.mark.parametrize("wiring", WIRINGS)
async def test_clients_may_leave_after_a_long_quiet(wiring: Wiring, tmp_path: Path) -> None:
    async with after_a_long_quiet(wiring, tmp_path) as (live, (answered, held)):
        held.cancel()
        await live.until(waiting=0, inflight=1)
        answered.cancel()


@pytest.mark.parametrize("wiring", WIRINGS)
async def test_answers_may_end_after_a_long_quiet(wiring: Wiring, tmp_path: Path) -> None:
    async with after_a_long_quiet(wiring, tmp_path) as (live, calls):
        live.echo.finish.set()
        assert [(await call).status for call in calls] == [200, 200]
