"""`policy-server gateway` as a user runs it: a process of its own, on free ports."""

# ruff: noqa: ASYNC110 - another process has no event to wait for

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from policy_server.processes import tied_to_us
from tests.support import wired

READY_WITHIN_S = 30


@dataclass
class GatewayCommand:
    """The running command. `policy_pids` = the active policy server and its standby, in order."""

    process: asyncio.subprocess.Process
    ports: dict[str, int]
    log: Path

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.ports['gateway']}"

    def children(self) -> dict[int, str]:
        """Pid → command line of its living children, oldest first: pids may have wrapped."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if stat[1] == str(self.process.pid) and stat[0] != "Z":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(stat[19]), int(entry.name)] = command  # when it was started
        return {pid: command for (_, pid), command in sorted(found.items())}

    def policy_pids(self) -> list[int]:
        """Oldest first: the active one serves."""
        return [pid for pid, command in self.children().items() if " serve " in command]

    def envoy_pid(self) -> int:
        """The pid of Envoy."""
        return next(pid for pid, c in self.children().items() if "envoy.yaml" in c)

    async def until_policy_pids(self, count: int) -> list[int]:
        """Waits until there are `count` policy servers."""
        async with asyncio.timeout(READY_WITHIN_S):
            while len(pids := self.policy_pids()) != count:
                await asyncio.sleep(0.02)
        return pids


def command_line(directory: Path, where: dict[str, int], *more: str) -> list[str]:
    """The command on these ports."""
    return [
        *(sys.executable, "-m", "policy_server", "gateway"),
        *("--host", "127.0.0.1", "--port", str(where["gateway"])),
        *("--grpc-port", str(where["grpc"]), "--http-port", str(where["http"])),
        *("--envoy-admin-port", str(where["admin"]), "--data-dir", str(directory / "data")),
        *more,
    ]


@contextlib.asynccontextmanager
async def running_gateway(
    directory: Path,
    where: dict[str, int] | None = None,
    *more: str,
    log_into: int | None = None,
) -> AsyncIterator[GatewayCommand]:
    """The command, ready. Its stderr goes to a file that is printed at the end, or to `log_into`,
    a file descriptor."""
    where = where or wired.ports()
    upstream = ("--upstream", f"http://127.0.0.1:{where['upstream']}")
    log = directory / "gateway.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *tied_to_us(command_line(directory, where, *upstream, *more)),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr if log_into is None else log_into,
            env=dict(os.environ),
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_WITHIN_S):
            assert await process.stdout.readline() == b"ready\n"
        yield GatewayCommand(process, where, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        print(log.read_text()[-6000:])
