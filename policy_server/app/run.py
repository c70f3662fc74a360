"""One policy server, from the start of its process to the signal that ends it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from policy_server.app.parent import Parent
from policy_server.app.reload import Reload
from policy_server.app.server import Mode, PolicyServer
from policy_server.config import Config
from policy_server.envoy_config.options import Wiring
from policy_server.telemetry.logs import configure_logging


async def run_server(
    config: Config,
    mode: Mode,
    data_dir: Path,
    parent: Parent,
    reload: Reload | None = None,
    wiring: Wiring = "gate",
) -> None:
    """Run until SIGTERM or SIGINT, under `parent`.

    Every wiring is served; `wiring` says how an Envoy is wired that does not say it itself.

    `data_dir` is for what outlives the process (journal, keys). Raises ConfigError when a port is
    taken or a file it names can't be used.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log = configure_logging()
    try:
        server = PolicyServer(config, mode, wiring, data_dir)
        async with server.running():
            if reload is not None:
                take_hang_ups(server, reload)
            parent.on_node(lambda n: loop.call_soon_threadsafe(server.driver.node_reborn, n))
            parent.ready()
            await stop.wait()
            await server.drain()
    finally:
        log.close()


def take_hang_ups(server: PolicyServer, reload: Reload) -> None:
    """SIGHUP reloads from now on; one that came while the process started is due now (it was
    blocked, see `policy_server/__main__.py`)."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
