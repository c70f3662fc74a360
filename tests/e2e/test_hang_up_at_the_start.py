"""SIGHUP while a process starts: it lives, and reloads as soon as it can."""

# ruff: noqa: ASYNC110 - another process has no event to wait for

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.envoy_process import wait_http_ok
from tests.support.gateway_command import command_line
from tests.support.stack import Process, start, stop
from tests.support.wired import ports

EVERY_S = 0.01


def blocks_hang_ups(process: Process) -> bool:
    """Whether its first lines have run."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(re.findall(r"^SigBlk:\s*(\w+)", status, re.M)[0], 16) & 1)


@contextlib.asynccontextmanager
async def hanging_up(process: Process) -> AsyncIterator[None]:
    """SIGHUP again and again."""

    async def again() -> None:
        while process.returncode is None:
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(again())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize("command", ["serve", "gateway"])
async def test_a_reload_that_comes_too_early_waits(command: str, tmp_path: Path) -> None:
    where, log = ports(), tmp_path / "log"
    config = tmp_path / "policy.yaml"
    addresses = f"{{grpc: '127.0.0.1:{where['grpc']}', http: '127.0.0.1:{where['http']}'}}"
    config.write_text(f"server: {addresses}\n")
    arguments = ["serve", "--config", str(config), "--data-dir", str(tmp_path / "data")]
    if command == "gateway":
        upstream = f"http://127.0.0.1:{where['upstream']}"
        arguments = command_line(tmp_path, where, "--upstream", upstream)[3:]
    process = await start(*arguments, log=log)
    try:
        async with asyncio.timeout(20):
            while not blocks_hang_ups(process):
                await asyncio.sleep(0.001)
        async with hanging_up(process):
            await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", process)
        async with asyncio.timeout(20):
            while "reloaded" not in log.read_text():
                await asyncio.sleep(EVERY_S)
        assert process.returncode is None
    finally:
        await stop(process)
