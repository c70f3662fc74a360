"""One supervised child process, and the rule for giving up on one that keeps failing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policy_server.processes import tied_to_us

MAX_FAILED_STARTS = 5
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class GaveUpError(Exception):
    """A child keeps failing; the message is one line. `code` is the exit code to leave with."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class FailedStarts:
    """Counts starts that failed in a row: how long to pause before the next, when to give up."""

    name: str
    count: int = 0

    def pause_s(self, exit_code: int) -> float:
        """Seconds to wait after one more. Raises GaveUpError after the fifth."""
        self.count += 1
        if self.count >= MAX_FAILED_STARTS:
            raise GaveUpError(
                f"{self.name} failed to start {self.count} times in a row "
                f"(exit code {exit_code}); its own messages are above"
            )
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(2 ** (self.count - 1)))


class Child:
    """A process that dies with us. In a session of its own: a terminal's Ctrl-C reaches only us."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, command: Sequence[str], env: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> Child:
        """Runs the command; `piped` = we hold its stdin and stdout."""
        pipe = asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *tied_to_us(command),
            env=env,
            stdin=pipe,
            stdout=pipe if piped else None,
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative = killed by that signal."""
        return self._process.returncode

    async def wait(self) -> int:
        """Until it ends."""
        return await self._process.wait()

    async def line(self) -> str:
        """The next line of its stdout, "" at the end."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode("utf-8", "replace").strip()

    def tell(self, line: str) -> None:
        """A line into its stdin; lost when it is gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(f"{line}\n".encode())

    def hang_up(self) -> None:
        """SIGHUP, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

    def terminate(self) -> None:
        """SIGTERM, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s` seconds; returns when it is gone."""
        self.terminate()
        try:
            await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            self.kill()
            await self.wait()
