"""Who started the process, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

NodeListener = Callable[[str], object]


def nobody(listener: NodeListener) -> None:
    """No one watches Envoy for us."""


@dataclass(frozen=True, slots=True)
class Parent:
    """`ready` is called once traffic may come. `on_node` gets a listener that may be called on any
    thread, with the name of an Envoy whose earlier lives are dead."""

    ready: Callable[[], None]
    on_node: Callable[[NodeListener], None] = nobody
