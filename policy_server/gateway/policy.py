"""The active policy server and its warm standby.

When the active one dies, the standby gets its turn in the same moment: the requests that Envoy
holds are re-sent until somebody listens again. The next standby starts once the new one is ready,
so that a start never competes with a take-over for the CPU.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from policy_server.gateway import standby
from policy_server.gateway.child import Child, FailedStarts, GaveUpError
from policy_server.gateway.plan import Plan

CONFIG_ERROR = 2


class PolicyServers:
    """Keeps one policy server serving. `ready` is set while it does."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.ready = asyncio.Event()
        self.active: Child | None = None
        self._plan = plan
        self._say = say
        self._standby: Child | None = None
        self._stopping = False

    async def keep(self) -> None:
        """Runs until `drain`. Raises GaveUpError when it keeps failing."""
        failures = FailedStarts("the policy server")
        while not self._stopping:
            self.active = self._standby or await self._start()
            self._standby = None
            came_up = await self._serve(self.active)
            code = await self.active.wait()
            self.ready.clear()
            if self._stopping:
                return
            self._report(code)
            if code == CONFIG_ERROR and not came_up:
                raise GaveUpError("the policy server refused its configuration", CONFIG_ERROR)
            if came_up:
                failures.count = 0
            else:
                await asyncio.sleep(failures.pause_s(code))

    def _report(self, code: int) -> None:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._say(f"the policy server ended ({how}); the standby takes over")

    async def _serve(self, child: Child) -> bool:
        """Gives `child` its turn; False when it ends before it serves."""
        child.tell(standby.GO)
        while word := await child.line():
            if word == standby.READY:
                self.ready.set()
                if not self._stopping:
                    self._standby = await self._start()
                return True
        return False

    async def _start(self) -> Child:
        command = [sys.executable, "-m", "policy_server.cli", "serve", "--standby"]
        command += ["--mode", "gateway", "--data-dir", str(self._plan.data_dir)]
        command += ["--wiring", self._plan.options.wiring]
        if self._plan.config_file is not None:
            command += ["--config", str(self._plan.config_file)]
        command += ["--accepted", str(self._plan.accepted_file)]
        child = await Child.start(command, self._plan.child_env, piped=True)
        if self._stopping:
            child.kill()
        return child

    def reload(self) -> None:
        """SIGHUP to the active one; a standby starts from what it accepted last."""
        if self.active is not None:
            self.active.hang_up()

    async def drain(self, limit_s: float) -> None:
        """SIGTERM to the active one and wait until it has finished, `limit_s` seconds at most."""
        self._stopping = True
        if self._standby is not None:
            self._standby.kill()
        if self.active is not None:
            await self.active.stop(limit_s)

    def kill(self) -> None:
        """Ends both at once."""
        self._stopping = True
        for child in (self.active, self._standby):
            if child is not None:
                child.kill()
