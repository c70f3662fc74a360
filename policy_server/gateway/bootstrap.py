"""Envoy's bootstrap, written anew for each of its lives.

Each start of Envoy has a node name of its own, NAME@LIFE. So the policy server can tell which slots
belong to an Envoy that is gone, and never mixes them up with those of the next.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.plain import to_yaml
from policy_server.gateway.plan import Plan
from policy_server.gateway.shelf import Shelf

NAME = "envoy.yaml"
_LIFE = "@of-this-life"


class Bootstrap:
    """Envoy's configuration file. `node`: the name of the Envoy that lives or is about to; `file`:
    where its configuration lies, once it was written."""

    def __init__(self, plan: Plan, shelf: Shelf) -> None:
        options = replace(plan.options, node_id=plan.options.node_id + _LIFE)
        self._text = to_yaml(build_bootstrap(plan.config, options), "Written by the gateway.")
        self._name = plan.options.node_id
        self._shelf = shelf
        self.node = self._name
        self.file = plan.data_dir / NAME

    def write(self) -> None:
        """For a new life. Raises OSError."""
        self.node = f"{self._name}@{secrets.token_hex(3)}"
        text = self._text.replace(self._name + _LIFE, self.node)
        self.file = self._shelf.put(NAME, text.encode())
