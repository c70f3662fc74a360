"""Which name in the configuration makes which limit."""

from __future__ import annotations

from collections.abc import Callable

from policy_server.core.limit.aimd import Aimd
from policy_server.core.limit.base import Limit
from policy_server.core.limit.fixed import Fixed
from policy_server.core.limit.gradient import Gradient
from policy_server.core.limit.vegas import Vegas
from policy_server.core.params import LimitParams

ALGORITHMS: dict[str, Callable[[LimitParams], Limit]] = {
    "vegas": Vegas,
    "gradient": Gradient,
    "aimd": Aimd,
    "fixed": Fixed,
}


def make_limit(params: LimitParams) -> Limit:
    """The limit that `params.algorithm` names; ValueError when there is none of that name."""
    factory = ALGORITHMS.get(params.algorithm)
    if factory is None:
        raise ValueError(f"limit algorithm {params.algorithm!r}: one of {', '.join(ALGORITHMS)}")
    return factory(params)
