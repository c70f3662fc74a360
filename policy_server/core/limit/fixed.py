"""A limit that never moves: for a known engine, and the control that adaptive limits must beat."""

from __future__ import annotations

from policy_server.core.limit.base import WINDOW_S, Change, Reason, WindowSample
from policy_server.core.params import LimitParams


class Fixed:
    """Always `initial` seats."""

    def __init__(self, params: LimitParams) -> None:
        self._limit = params.initial

    @property
    def current(self) -> float:
        """The limit, seats."""
        return self._limit

    @property
    def window_s(self) -> float:
        """The least length of a window, seconds."""
        return WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """Hold, whatever the window showed."""
        return Change(self._limit, Reason.HOLD)

    def reconfigure(self, params: LimitParams) -> None:
        """Another constant."""
        self._limit = params.initial

    def rescale(self, factor: float) -> None:
        """Fixed means fixed."""

    def state(self) -> dict[str, float]:
        """Nothing is learned."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Nothing to restore."""
