"""`policy-server top` as a person runs it: in a terminal, and into a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support import wired
from tests.support.envoy_process import wait_http_ok
from tests.support.stack import Process, start, stop

TOP = (sys.executable, "-m", "policy_server", "top", "--url")
CONTROL = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """A pseudo terminal of 100 x 40 and what was written to it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.text = ""

    async def until(self, words: str) -> None:
        """Reads until the words have been written; forgets what came before them."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while words not in self.text:
                chunk = await loop.run_in_executor(None, os.read, self.ours, 65536)
                self.text += CONTROL.sub("", chunk.decode("utf-8", "replace"))
        self.text = self.text.split(words, 1)[1]


@contextlib.asynccontextmanager
async def terminal_of(*command: str) -> AsyncIterator[tuple[Terminal, Process]]:
    terminal = Terminal()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    try:
        yield terminal, process
    finally:
        await stop(process)
        os.close(terminal.ours)
        os.close(terminal.theirs)


@contextlib.asynccontextmanager
async def serving(directory: Path, where: dict[str, int]) -> AsyncIterator[Process]:
    config = directory / "policy.yaml"
    addresses = f"grpc: 127.0.0.1:{where['grpc']}, http: 127.0.0.1:{where['http']}"
    config.write_text(f"server: {{{addresses}}}\npools: [{{name: chat}}]\n")
    command = ("serve", "--config", str(config), "--data-dir", str(directory / "data"))
    process = await start(*command, log=directory / "serve.log")
    try:
        await wait_http_ok(f"http://127.0.0.1:{where['http']}/readyz", process)
        yield process
    finally:
        await stop(process)


async def piped(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *TOP, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


async def test_it_follows_a_server_that_goes_and_comes_back(tmp_path: Path) -> None:
    where = wired.ports()
    url = f"http://127.0.0.1:{where['http']}"
    async with serving(tmp_path, where):
        code, out, _ = await piped(url)  # a pipe: once, without --once
        assert code == 0
        assert "chat  no request has come yet" in out
        assert "\x1b" not in out
    async with contextlib.AsyncExitStack() as server:
        await server.enter_async_context(serving(tmp_path, where))
        async with terminal_of(*TOP, url) as (terminal, process):
            await terminal.until("no request has come yet")
            await server.aclose()
            await terminal.until("does not answer")
            async with serving(tmp_path, where):
                await terminal.until("ready  up")
                process.send_signal(signal.SIGINT)
                assert await asyncio.wait_for(process.wait(), 10) == 0
    code, out, err = await piped(url, "--once")
    assert (code, out) == (1, "")
    assert "Connection refused" in err
    assert len(err.splitlines()) == 1
