"""All scenarios in one table, in the order of the control design."""

from __future__ import annotations

from policy_server.simulate.errors import InputError
from policy_server.simulate.scenarios.base import Scenario
from policy_server.simulate.scenarios.change import CHANGE
from policy_server.simulate.scenarios.replay import REPLAY
from policy_server.simulate.scenarios.returns import RETURNS
from policy_server.simulate.scenarios.scaling import SCALING
from policy_server.simulate.scenarios.shapes import SHAPES
from policy_server.simulate.scenarios.sharing import SHARING
from policy_server.simulate.scenarios.steady import STEADY

SCENARIOS = tuple(
    sorted(
        (*STEADY, *CHANGE, *SHARING, *RETURNS, *REPLAY, *SHAPES, *SCALING),
        key=lambda item: item.number,
    )
)


def scenario(name: str) -> Scenario:
    """By name or number. Raises InputError naming the known ones."""
    for item in SCENARIOS:
        if name in (item.name, str(item.number)):
            return item
    known = ", ".join(f"{item.number} {item.name}" for item in SCENARIOS)
    raise InputError(f"scenario {name!r}: one of {known}")
