"""Pauses of milliseconds."""

from __future__ import annotations

import pytest

from policy_server.core import slew
from policy_server.jobs import attempts, disk, dispatcher


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(slew, "COOL_S", 0.01)
    monkeypatch.setattr(dispatcher, "RETRY_STORE_S", 0.01)
    monkeypatch.setattr(disk, "RETRY_S", 0.01)
