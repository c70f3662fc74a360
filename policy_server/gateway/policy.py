"""The active policy server and its warm standby.

When the active one dies, or is alive but stuck and therefore killed, the standby gets its turn in
the same moment: the requests that Envoy holds are re-sent until somebody listens again. The next
standby starts once the new one is ready, so that a start never competes with a take-over for the
CPU.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from policy_server.config import split_host_port
from policy_server.envoy_config.command import ANY_HOSTS
from policy_server.gateway import standby
from policy_server.gateway.accepted import Kept
from policy_server.gateway.bootstrap import Bootstrap
from policy_server.gateway.child import Child, FailedStarts, GaveUpError
from policy_server.gateway.liveness import Patience, health_of, until_stuck
from policy_server.gateway.plan import Plan

CONFIG_ERROR = 2
PATIENCE = Patience()
READY_WITHIN_S = 60.0
STANDBY_PAUSE_S, LONGEST_STANDBY_PAUSE_S = 1.0, 60.0
"""A start takes a second or two; a stopped or deadlocked one would take for ever."""


class PolicyServers:
    """Keeps one policy server serving. `ready` is set while it does."""

    def __init__(
        self, plan: Plan, say: Callable[[str], None], bootstrap: Bootstrap, kept: Kept
    ) -> None:
        self.ready = asyncio.Event()
        self.active: Child | None = None
        self._plan = plan
        self._bootstrap = bootstrap
        self._kept = kept
        self._say = say
        host, port = split_host_port(plan.config.server.http)
        self._ask = health_of(ANY_HOSTS.get(host, host), port)
        self._standby: Child | None = None
        self._serving: Child | None = None
        self._reload_due = False
        self._stopping = False

    async def keep(self) -> None:
        """Runs until `drain`. Raises GaveUpError when it keeps failing."""
        failures = FailedStarts("the policy server")
        while not self._stopping:
            self.active = self._standby or await self._start()
            self._standby = None
            came_up = await self._serve(self.active)
            if came_up:
                await self._while_it_answers(self.active)
            code = await self.active.wait()
            self.ready.clear()
            if self._stopping:
                return
            self._report(code, came_up)
            if code == CONFIG_ERROR and not came_up:
                raise GaveUpError("the policy server refused its configuration", CONFIG_ERROR)
            if came_up:
                failures.count = 0
            else:
                await asyncio.sleep(failures.pause_s(code))

    def _report(self, code: int, came_up: bool) -> None:
        if came_up:
            self._say(f"the policy server ended ({_how(code)}); the standby takes over")
        else:
            self._say(f"the policy server did not come up ({_how(code)})")

    async def _serve(self, child: Child) -> bool:
        """Gives `child` its turn; False when it ends, or is ended, before it serves."""
        child.tell(standby.GO)
        child.tell(standby.node(self._bootstrap.node))
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                if not await _says_ready(child):
                    return False
        except TimeoutError:
            self._say(f"the policy server is not ready after {READY_WITHIN_S:.0f} s; killing it")
            child.kill()
            return False
        self.ready.set()
        self._serving = child
        if self._reload_due:
            self.reload()
        if not self._stopping:
            self._standby = await self._start()
        return True

    async def _while_it_answers(self, child: Child) -> None:
        """Until `child` ends, or is found stuck and killed. Draining has bounds of its own."""
        stuck = asyncio.create_task(until_stuck(self._ask, PATIENCE))
        ended = asyncio.create_task(child.wait())
        beside = asyncio.create_task(self._see_to_a_standby())
        await asyncio.wait([stuck, ended], return_when=asyncio.FIRST_COMPLETED)
        if stuck.done() and not ended.done() and not self._stopping:
            self._say(
                f"the policy server runs but did not answer /healthz {PATIENCE.misses} times "
                "in a row: it is stuck; killing it"
            )
            child.kill()
        for task in (stuck, ended, beside):
            task.cancel()
        await asyncio.wait([beside])

    async def _see_to_a_standby(self) -> None:
        """Until cancelled. Where memory is short it is the first that is killed, and its absence
        would be noticed when it is needed."""
        pause_s = STANDBY_PAUSE_S
        while not self._stopping:
            try:
                if self._standby is None:
                    self._standby = await self._start_whole()
                how = _how(await self._standby.wait())
            except OSError as error:
                how = error.strerror or str(error)
            if self._stopping:
                return
            self._standby = None
            self._say(f"the standby ended ({how}); another one is started in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, LONGEST_STANDBY_PAUSE_S)

    async def _start_whole(self) -> Child:
        """Not broken off in the middle: that would leave a process that nobody knows of."""
        starting = asyncio.create_task(self._start())
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._standby = await starting
            raise

    async def _start(self) -> Child:
        command = [sys.executable, "-m", "policy_server", "serve", "--standby"]
        command += ["--mode", "gateway", "--data-dir", str(self._plan.data_dir)]
        command += ["--wiring", self._plan.options.wiring]
        if self._plan.config_file is not None:
            command += ["--config", str(self._plan.config_file)]
        command += ["--accepted", str(self._kept.accepted)]
        command += ["--built", str(self._kept.built)]
        child = await Child.start(command, self._plan.child_env, piped=True)
        if self._stopping:
            child.kill()
        return child

    def tell_node(self) -> None:
        """The Envoy that lives from now on; earlier ones are dead."""
        if self.active is not None:
            self.active.tell(standby.node(self._bootstrap.node))

    def reload(self) -> None:
        """SIGHUP to the active one, once it serves; a standby starts from what was accepted."""
        self._reload_due = self.active is None or self.active is not self._serving
        if self.active is not None and not self._reload_due:
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


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


async def _says_ready(child: Child) -> bool:
    while word := await child.line():
        if word == standby.READY:
            return True
    return False
