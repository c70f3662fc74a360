"""Full collections happen when nobody has to wait for them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from policy_server.garbage import EVERY_S, FEW, OVERDUE_S, FullCollections


@pytest.fixture
def _collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_a_full_collection_waits_for_its_time() -> None:
    collections = FullCollections(0.0)
    assert not collections.tick(0, EVERY_S - 1)
    assert collections.tick(0, EVERY_S)
    assert not collections.tick(0, EVERY_S + 1)


def test_a_full_collection_waits_until_few_are_held_but_not_for_ever() -> None:
    collections = FullCollections(0.0)
    assert not collections.tick(FEW + 1, EVERY_S)
    assert collections.tick(FEW, EVERY_S + 1)
    assert not collections.tick(FEW + 1, OVERDUE_S)
    assert collections.tick(FEW + 1, EVERY_S + 1 + OVERDUE_S)


@pytest.mark.usefixtures("_collector")
def test_python_itself_does_none_any_more() -> None:
    FullCollections(0.0).take_over()
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(200_000)]
    assert len(kept) == 200_000
    assert gc.get_stats()[2]["collections"] == before
