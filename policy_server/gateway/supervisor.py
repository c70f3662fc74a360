"""Runs a gateway: both children kept alive, `ready` said, signals turned into a clean end.

Draining, in this order: Envoy turns new connections away, the policy server answers the holds,
admits nothing new and waits for what is in flight, Envoy ends last. A second signal ends all now.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from policy_server.config import ConfigError
from policy_server.gateway.accepted import Kept
from policy_server.gateway.bootstrap import Bootstrap
from policy_server.gateway.child import GaveUpError
from policy_server.gateway.envoy import Envoy
from policy_server.gateway.plan import Plan
from policy_server.gateway.policy import PolicyServers
from policy_server.gateway.shelf import Shelf
from policy_server.process_lock import LockedError, ProcessLock
from policy_server.processes import raise_file_limit
from policy_server.telemetry.logs import configure_logging, get_logger

# The policy server bounds its own wait for answers in flight (30 s); this is above it.
POLICY_DRAIN_S = 45.0
ENVOY_IDLE_S = 5.0
ENVOY_STOP_S = 5.0
LOCK_NAME = "gateway.lock"


def run_gateway(plan: Plan) -> int:
    """Runs until a signal; the exit code of the command."""
    raise_file_limit()
    writer = configure_logging()  # whoever reads it may stall or leave: that must hold up nobody
    shelf = Shelf(plan.data_dir, _say)
    lock = None
    try:
        lock = _own(plan.data_dir)
        supervisor = _Supervisor(plan, shelf)
        return asyncio.run(supervisor.run())
    finally:
        shelf.clear()
        if lock is not None:
            lock.release()
        writer.close()


def _own(data_dir: Path) -> ProcessLock:
    """Before anything is written there: a second gateway must not change what the first one's
    standby takes over with."""
    try:
        return ProcessLock(data_dir / LOCK_NAME)
    except OSError as error:
        raise _not_written(data_dir, error) from None
    except LockedError as error:
        raise ConfigError(
            f"--data-dir: {data_dir} is in use by the gateway with process id {error.owner}; "
            "stop that one, or choose another folder"
        ) from None


def _not_written(data_dir: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--data-dir: {error.filename or data_dir}: {error.strerror}")


class _Supervisor:
    def __init__(self, plan: Plan, shelf: Shelf) -> None:
        self._bootstrap = Bootstrap(plan, shelf)
        try:
            self._bootstrap.write()
            kept = Kept.on(shelf, plan.config)
        except OSError as error:
            raise _not_written(plan.data_dir, error) from None
        self._policy = PolicyServers(plan, _say, self._bootstrap, kept)
        self._envoy = Envoy(plan, _say, self._bootstrap, self._envoy_ended)
        self._stop, self._now = asyncio.Event(), asyncio.Event()

    def _envoy_ended(self) -> None:
        """The next one gets a life of its own, and what the last one carried is given back."""
        self._bootstrap.write()
        self._policy.tell_node()

    async def run(self) -> int:
        keepers = [
            asyncio.create_task(self._policy.keep()),
            asyncio.create_task(self._envoy.keep()),
        ]
        greeting = asyncio.create_task(self._say_ready())
        with self._signals():
            stop = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait([*keepers, stop], return_when=asyncio.FIRST_COMPLETED)
                greeting.cancel()
                return await self._end(keepers)
            finally:
                stop.cancel()
                self._policy.kill()
                self._envoy.kill()
                await asyncio.wait(keepers)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> int:
        for keeper in keepers:
            failure = keeper.exception() if keeper.done() else None
            if isinstance(failure, GaveUpError):
                _say(str(failure))
                return failure.code
            if failure is not None:
                raise failure
        drain = asyncio.create_task(self._drain())
        now = asyncio.create_task(self._now.wait())
        await asyncio.wait([drain, now], return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, now):
            task.cancel()
        return 0

    async def _drain(self) -> None:
        _say("draining")
        await self._envoy.drain()
        await self._policy.drain(POLICY_DRAIN_S)
        await self._envoy.idle(ENVOY_IDLE_S)
        await self._envoy.stop(ENVOY_STOP_S)

    async def _say_ready(self) -> None:
        await self._policy.ready.wait()
        await self._envoy.ready.wait()
        print("ready", flush=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self._asked_to_stop,
            signal.SIGINT: self._asked_to_stop,
            signal.SIGHUP: self._policy.reload,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # see policy_server/__main__.py
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _asked_to_stop(self) -> None:
        (self._now if self._stop.is_set() else self._stop).set()


def _say(text: str) -> None:
    get_logger().warning("gateway", detail=text)
