"""The policy server with its journal in memory: `python -m tests.bench.memory_gate CONFIG`.

The same process in everything else, so that a bench can tell what the disk costs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from policy_server.app import PolicyServer
from policy_server.config import load_config
from policy_server.telemetry.logs import configure_logging


async def serve(config: Path) -> None:
    """Until killed."""
    configure_logging()
    async with PolicyServer(load_config(config, {}), "serve", data_dir=None).running():
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
