"""Which policy server hears of a reload, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from policy_server.gateway.accepted import Kept
from policy_server.gateway.bootstrap import Bootstrap
from policy_server.gateway.child import Child
from policy_server.gateway.plan import Plan
from policy_server.gateway.policy import PolicyServers
from policy_server.gateway.standby import READY


class Started:
    """A child that says it is ready when it is asked for a line."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def tell(self, line: str) -> None:
        self.heard.append(line)

    def hang_up(self) -> None:
        self.heard.append("reload")

    async def line(self) -> str:
        return READY


async def test_a_reload_waits_until_the_policy_server_can_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SimpleNamespace(server=SimpleNamespace(http="127.0.0.1:1"))
    plan, bootstrap = SimpleNamespace(config=config), SimpleNamespace(node="gateway@1")
    kept = Kept(Path("accepted"), Path("built"))
    servers = PolicyServers(cast(Plan, plan), lambda _: None, cast(Bootstrap, bootstrap), kept)
    child = Started()
    servers.active = cast(Child, child)
    standby: Any = Started()

    async def start() -> Child:
        return cast(Child, standby)

    monkeypatch.setattr(servers, "_start", start)
    servers.reload()
    assert "reload" not in child.heard  # it would die of it
    assert await servers._serve(servers.active)
    assert child.heard[-1] == "reload"
    assert child.heard.count("reload") == 1
    servers.reload()
    assert child.heard.count("reload") == 2
    assert standby.heard == []
