"""The policy server with everything in memory: what the disk costs is measured against it.

python -m tests.bench.memory_server CONFIG
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from policy_server.app.server import PolicyServer
from policy_server.config import load_config
from policy_server.telemetry.logs import configure_logging


async def serve(config: Path) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    configure_logging()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = PolicyServer(load_config(config, {}), "serve", data_dir=None)
    async with server.running():
        await stop.wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
