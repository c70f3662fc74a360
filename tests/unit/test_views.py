"""What is remembered of the running core for those who look."""

from __future__ import annotations

from policy_server.core.admission import Admission
from policy_server.core.events import LimitChanged
from policy_server.core.limit.base import Change, Reason
from policy_server.views import CHANGES_KEPT, Views
from tests.support.core_builders import Coin, pool_params


def moved(previous: float, limit: float, reason: Reason) -> LimitChanged:
    return LimitChanged("chat", previous, Change(limit, reason))


def test_the_last_moves_are_shown_and_what_did_not_move_is_none() -> None:
    views = Views(Admission([pool_params(16.0)], Coin()))
    views.on_event(moved(20.0, 16.0, Reason.CLAMP), 1.0)
    for second in range(2, 60):
        views.on_event(moved(16.0, 16.0, Reason.CLAMP), float(second))
        views.on_event(moved(16.0, 16.0, Reason.HOLD), float(second))
    views.on_event(moved(16.0, 18.0, Reason.GROW), 60.0)
    (pool,) = views.pools(now=61.0)
    assert [(c.previous, c.limit, c.age_s) for c in pool.changes] == [
        (16.0, 18.0, 1.0),
        (20.0, 16.0, 60.0),
    ]


def test_no_more_than_the_last_moves_are_kept() -> None:
    views = Views(Admission([pool_params(16.0)], Coin()))
    for step in range(CHANGES_KEPT * 2):
        views.on_event(moved(step, step + 1.0, Reason.GROW), float(step))
    (pool,) = views.pools(now=100.0)
    assert len(pool.changes) == CHANGES_KEPT
    assert pool.changes[0].limit == CHANGES_KEPT * 2
