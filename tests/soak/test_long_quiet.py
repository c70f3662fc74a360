"""Envoy outlives a stream that ends after nobody has asked for a minute.

Envoy forgets a gRPC client that no request has used for 50 s. A stream of that client that ends
later must not take Envoy along; with the graceful close of ext_proc streams, Envoy 1.40 died of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from policy_server.envoy_config.options import Wiring
from tests.e2e.contract.conftest import WIRINGS, running_live

QUIET_S = 55.0
"""Longer than Envoy's 50 s, shorter than the longest wait of the stack (60 s)."""


@pytest.mark.parametrize("wiring", WIRINGS)
async def test_clients_may_leave_after_a_long_quiet(wiring: Wiring, tmp_path: Path) -> None:
    async with running_live(wiring, tmp_path) as live:
        answered = await live.busy("/half")
        held = live.start_post()
        await live.until(waiting=1, inflight=1)
        await asyncio.sleep(QUIET_S)
        held.cancel()
        await live.until(waiting=0, inflight=1)
        answered.cancel()
        await live.until(waiting=0, inflight=0)
        live.echo.finish.set()
        assert (await live.post()).status == 200
        assert live.envoys["near"].process.returncode is None


@pytest.mark.parametrize("wiring", WIRINGS)
async def test_answers_may_end_after_a_long_quiet(wiring: Wiring, tmp_path: Path) -> None:
    async with running_live(wiring, tmp_path) as live:
        answered = await live.busy("/half")
        held = live.start_post()
        await live.until(waiting=1, inflight=1)
        await asyncio.sleep(QUIET_S)
        live.echo.finish.set()
        assert [(await call).status for call in (answered, held)] == [200, 200]
        await live.until(waiting=0, inflight=0)
        assert (await live.post()).status == 200
        assert live.envoys["near"].process.returncode is None
