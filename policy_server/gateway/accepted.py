"""The configuration that runs, kept in the data directory for whoever has to take over.

The file that the operator edits may be half written, or changed in a way that only a restart can
follow, at the very moment when the policy server dies. A replacement therefore starts from what
was accepted last: at the start of the gateway, or by a reload. Beside it lies what Envoy's side was
made from, which no reload changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from policy_server import private_file
from policy_server.config import Config
from policy_server.gateway.shelf import Shelf

NAME = "accepted-config.json"
BUILT_NAME = "envoy-made-from.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the two lie."""

    accepted: Path
    built: Path

    @classmethod
    def on(cls, shelf: Shelf, config: Config) -> Kept:
        """Both, as they are at the start. Raises OSError."""
        data = _content(config)
        return cls(shelf.put(NAME, data), shelf.put(BUILT_NAME, data))


def save(config: Config, path: Path) -> None:
    """Replace the kept configuration in one step; it may hold secrets, so only we may read it."""
    private_file.replace(path, _content(config))


def _content(config: Config) -> bytes:
    return config.model_dump_json(by_alias=True, indent=1).encode()
