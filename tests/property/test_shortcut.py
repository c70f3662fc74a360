"""With nobody in line, who stays below every bound is let go without the class rule being asked:
the rule would have said the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.leases import Lease, LeaseTable
from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.request import PRIORITIES, Kind, Request
from policy_server.core.room.lines import Lines
from policy_server.core.usable import Usable

NOW = 100.0
PARAMS = PoolParams("chat", LimitParams("fixed"))
requests = st.builds(
    lambda priority, kind, seats, number: Request(
        f"{priority}-{number}", "chat", priority, NOW, NOW + 5.0, seats=seats, kind=kind
    ),
    st.sampled_from(PRIORITIES),
    st.sampled_from(Kind),
    st.integers(1, 8),
    st.integers(0, 10**9),
)


@given(
    st.lists(requests, max_size=20, unique_by=lambda request: request.uid),
    requests,
    st.floats(0.1, 200.0),
    st.lists(st.sampled_from(PRIORITIES)),
    st.integers(0, 100),
    st.integers(0, 20),
)
def test_the_rule_would_let_it_go_too(
    in_use: list[Request],
    newcomer: Request,
    limit: float,
    heard: list[int],
    cut_at: int,
    cooling: int,
) -> None:
    leases, usable = LeaseTable(), Usable(PARAMS, limit)
    lines = Lines(PARAMS, leases, usable)
    for request in in_use:
        leases.grant(Lease(request, NOW, False, 1.0, NOW))
    for priority in heard:
        lines.rule.note_arrival(PRIORITIES[priority], NOW)
    lines.rule.note_cut(cut_at)
    lines.rule.rest(1.0, NOW)
    if cooling:
        usable.slew.failed(cooling, 0.0, 2.0, NOW)

    if lines._plenty(newcomer, limit, NOW):
        assert lines._is_next(newcomer, limit, NOW)
