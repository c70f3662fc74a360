"""Who has to give up how much, so that a bound holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policy_server.journal.kept import KeptBytes


def test_who_keeps_little_keeps_all() -> None:
    kept = KeptBytes({"a": 100, "b": 10, "c": 60})
    assert kept.surplus(170) == {}
    assert kept.surplus(110) == {"a": 50, "c": 10}
    assert kept.surplus(0) == {"a": 100, "b": 10, "c": 60}


def test_the_sum_follows_and_nobody_stays_with_nothing() -> None:
    kept = KeptBytes()
    kept.add("a", 7)
    copy = kept.copy()
    kept.add("a", -7)
    assert (kept.total, kept.surplus(-1)) == (0, {})
    assert copy.total == 7
    kept.add("b", -5)
    assert kept.total == 0, "what was never counted takes nothing away"


@given(st.dictionaries(st.text(max_size=2), st.integers(1, 1000), max_size=8), st.integers(0, 4000))
def test_the_rest_fits_and_is_shared_evenly(sizes: dict[str, int], bound: int) -> None:
    kept = KeptBytes(sizes)
    surplus = kept.surplus(bound)
    left = {tenant: size - surplus.get(tenant, 0) for tenant, size in sizes.items()}
    assert sum(left.values()) <= max(bound, 0) or (not surplus and kept.total <= bound)
    assert min(left.values(), default=0) >= 0
    for tenant in surplus:
        assert left[tenant] >= max(left.values()) - 1, "nobody who was cut is left with less"
    if surplus:
        assert sum(left.values()) > bound - len(surplus), "no more than has to go"
