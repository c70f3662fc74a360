"""Values of the hot path: cheap to make, and all the same values."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.events import Admitted
from policy_server.core.request import Priority, Request


def test_equal_fields_are_equal_values() -> None:
    one, same = (Request("u", "chat", Priority.P0, 1.0, 2.0) for _ in range(2))
    other = replace(one, tenant="acme")

    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert len({one, same, other}) == 2


def test_there_is_no_place_for_another_field() -> None:
    admitted = Admitted(Request("u", "chat", Priority.P0, 1.0, 2.0), 0.0, False, False)

    assert not hasattr(admitted, "__dict__")
