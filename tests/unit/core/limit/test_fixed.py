"""A fixed limit stays where it was put."""

from __future__ import annotations

import pytest

from policy_server.core.limit.base import Reason, WindowSample
from policy_server.core.limit.fixed import Fixed
from policy_server.core.limit.registry import ALGORITHMS, make_limit
from policy_server.core.params import LimitParams

OVERLOADED = WindowSample(
    1.0, 2.0, 99, 50, 50, True, engine_queue=99.0, delay_s=9.0, error_share=1.0, saturated=True
)


def test_no_window_moves_it() -> None:
    limit = Fixed(LimitParams(initial=12.0))
    change = limit.on_window(OVERLOADED)
    assert (change.limit, change.reason, limit.current) == (12.0, Reason.HOLD, 12.0)


def test_a_restart_does_not_halve_it_and_a_reload_moves_it() -> None:
    limit = Fixed(LimitParams(initial=12.0))
    limit.restore({"limit": 500.0})
    assert limit.current == 12.0
    assert limit.state() == {}
    limit.reconfigure(LimitParams(initial=7.0))
    assert limit.current == 7.0


def test_the_name_in_the_configuration_makes_the_limit() -> None:
    for name in ALGORITHMS:
        assert make_limit(LimitParams(name, initial=5.0)).current == 5.0
    with pytest.raises(ValueError, match="'vega': one of vegas, gradient, aimd, fixed"):
        make_limit(LimitParams("vega"))


@pytest.mark.parametrize("name", ["vegas", "gradient", "aimd"])
def test_every_learned_limit_starts_at_half_and_stays_in_its_bounds(name: str) -> None:
    params = LimitParams(name, initial=16.0, minimum=10.0, maximum=100.0)
    for saved, start in ((60.0, 30.0), (12.0, 10.0), (9_000.0, 100.0), (-5.0, 10.0)):
        limit = make_limit(params)
        limit.restore({"limit": saved})
        assert limit.current == start
    limit = make_limit(params)
    limit.restore({})
    assert limit.current in (8.0, 10.0, 16.0)
    limit.reconfigure(LimitParams(name, minimum=20.0, maximum=25.0))
    assert 20.0 <= limit.current <= 25.0
    assert make_limit(LimitParams(name, initial=1.0, minimum=4.0)).current == 4.0
