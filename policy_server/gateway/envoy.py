"""Envoy as a child: started, restarted with growing pauses, asked to drain, stopped last."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable

from policy_server.envoy_config.command import ANY_HOSTS
from policy_server.gateway.bootstrap import Bootstrap
from policy_server.gateway.child import Child, FailedStarts
from policy_server.gateway.plan import Plan

# After a drain is asked for, connections are turned away politely for this long, then the
# listener closes; what is in flight goes on.
DRAIN_TIME_S = 5
POLL_S = 0.02
IDLE_POLL_S = 0.1
REQUEST_TIMEOUT_S = 2.0
_ACTIVE = re.compile(rb"http\.gateway\.downstream_rq_active: (\d+)")


class Envoy:
    """Keeps one Envoy running with its bootstrap. `ready` is set while it takes traffic;
    `ended` is called between two lives, when nothing of the last one runs any more."""

    def __init__(
        self,
        plan: Plan,
        say: Callable[[str], None],
        bootstrap: Bootstrap,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.ready = asyncio.Event()
        self._ended = ended
        self._bootstrap = bootstrap
        self._plan = plan
        self._say = say
        self._child: Child | None = None
        self._stopping = False

    async def keep(self) -> None:
        """Runs until `stop`. Raises GaveUpError when it keeps failing."""
        failures = FailedStarts("Envoy")
        while not self._stopping:
            self._child = await Child.start(self._command())
            if self._stopping:
                self._child.kill()
            watch = asyncio.create_task(self._watch())
            code = await self._child.wait()
            watch.cancel()
            came_up = self.ready.is_set()
            self.ready.clear()
            if self._stopping:
                return
            self._say(f"Envoy ended (exit code {code}); starting it again")
            self._ended()
            if came_up:
                failures.count = 0
            else:
                await asyncio.sleep(failures.pause_s(code))

    def _command(self) -> list[str]:
        return [
            *(self._plan.envoy, "-c", str(self._bootstrap.file)),
            # Nothing of a hot restart is used, and its shared memory is one more thing to miss.
            "--disable-hot-restart",
            *("--drain-time-s", str(DRAIN_TIME_S), "--drain-strategy", "immediate"),
            # A crash of the policy server is one warning per held request otherwise.
            *("--log-level", "warning", "--component-log-level", "ext_proc:error"),
        ]

    async def _watch(self) -> None:
        while not (await self._live() and await self._accepts()):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(POLL_S)
        self.ready.set()

    async def _live(self) -> bool:
        return (await self._admin("GET", "/ready")).startswith(b"HTTP/1.1 200")

    async def _accepts(self) -> bool:
        host = ANY_HOSTS.get(self._plan.options.host, self._plan.options.host)
        try:
            _, writer = await asyncio.open_connection(host, self._plan.options.port)
        except OSError:
            return False
        writer.close()
        return True

    async def drain(self) -> None:
        """Turns new connections away; what is in flight goes on."""
        await self._admin("POST", "/drain_listeners?graceful")

    async def idle(self, limit_s: float) -> None:
        """Until no request is in flight, `limit_s` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while await self._busy():  # noqa: ASYNC110 (Envoy has no event for it)
                    await asyncio.sleep(IDLE_POLL_S)

    async def _busy(self) -> bool:
        stats = await self._admin("GET", "/stats?filter=downstream_rq_active")
        found = _ACTIVE.search(stats)
        return found is not None and int(found[1]) > 0

    async def stop(self, grace_s: float) -> None:
        """Ends it."""
        self._stopping = True
        if self._child is not None:
            await self._child.stop(grace_s)

    def kill(self) -> None:
        """Ends it at once."""
        self._stopping = True
        if self._child is not None:
            self._child.kill()

    async def _admin(self, method: str, path: str) -> bytes:
        """One request to the admin port: the whole answer, or nothing."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                port = self._plan.options.admin_port
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    head = f"{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n"
                    writer.write(head.encode())
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""
