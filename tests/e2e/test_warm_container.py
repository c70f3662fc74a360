"""The script of `envoy/keda/model.yaml`'s warm container, as its shell runs it."""

# ruff: noqa: ASYNC110 - other processes have no event to wait for

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from policy_server.processes import tied_to_us
from tests.support.envoy_process import free_ports
from tests.support.stack import start, stop

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
WITHIN_S = 60


class Warm:
    """The container: its command, its folder for /tmp, the pod's port."""

    def __init__(self, folder: Path, port: int) -> None:
        self.file = folder / "warm"
        _, deployment = yaml.safe_load_all((ROOT / "envoy/keda/model.yaml").read_text("utf-8"))
        containers = deployment["spec"]["template"]["spec"]["containers"]
        (warm,) = (one for one in containers if one["name"] == "warm")
        words = [*warm["command"], *warm["args"]]
        here = [word.replace("/tmp/", f"{folder}/").replace(":8000", f":{port}") for word in words]
        assert str(port) in here[-1]
        self.words = here
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *tied_to_us(self.words),
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.DEVNULL,  # a pipe would stay open with what it leaves behind
            start_new_session=True,
        )

    async def until_probed(self) -> None:
        """The startup probe finds the file."""
        async with asyncio.timeout(WITHIN_S):
            while not self.file.exists():
                assert self.process.returncode is None
                await asyncio.sleep(0.05)

    async def until_it_asks(self) -> None:
        """The shell has got as far as the warm-up."""
        async with asyncio.timeout(WITHIN_S):
            while not any("warmup" in words for words in _children(self.process.pid)):
                await asyncio.sleep(0.02)

    async def end(self) -> int:
        """As Kubernetes ends it; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), WITHIN_S)

    def kill(self) -> None:
        """All that is left of it, as a container's end does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _children(pid: int) -> list[list[str]]:
    """Of each, its words."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{child}/cmdline").read_text("utf-8").split("\0"))
    return found


@contextlib.asynccontextmanager
async def warming(folder: Path, port: int) -> AsyncIterator[Warm]:
    warm = Warm(folder, port)
    await warm.start()
    try:
        yield warm
    finally:
        warm.kill()
        await warm.process.wait()


async def test_it_is_ready_when_the_model_server_is_warm_and_ends_when_told(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with warming(tmp_path, port) as warm:
        await warm.until_it_asks()
        assert not warm.file.exists()
        flags = ("--port", str(port), "--cold-start", "1", "--model", "Qwen/Qwen2.5-7B-Instruct")
        backend = await start("backend", *flags, log=tmp_path / "backend.log")
        try:
            await warm.until_probed()
        finally:
            await stop(backend)
        assert await warm.end() == 0


async def test_it_ends_when_told_while_it_still_waits(tmp_path: Path) -> None:
    """A pod that is not wanted any more must not take its whole grace period to go."""
    (port,) = free_ports(1)
    async with warming(tmp_path, port) as warm:
        await warm.until_it_asks()
        assert await warm.end() == 0
    assert not warm.file.exists()


async def test_after_a_restart_it_is_not_ready_by_the_old_file(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "warm").touch()
    async with warming(tmp_path, port) as warm:
        await warm.until_it_asks()
        assert not warm.file.exists()
