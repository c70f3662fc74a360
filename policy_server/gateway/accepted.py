"""The configuration that runs, kept in the data directory for whoever has to take over.

The file that the operator edits may be half written, or changed in a way that only a restart can
follow, at the very moment when the policy server dies. A replacement therefore starts from what
was accepted last: at the start of the gateway, or by a reload. Beside it lies what Envoy's side was
made from, which no reload changes.
"""

from __future__ import annotations

from pathlib import Path

from policy_server import private_file
from policy_server.config import Config

NAME = "accepted-config.json"
BUILT_NAME = "envoy-made-from.json"


def save(config: Config, path: Path) -> None:
    """Replace the kept configuration in one step; it may hold secrets, so only we may read it."""
    private_file.replace(path, config.model_dump_json(by_alias=True, indent=1).encode())
