"""The bound of Envoy's heap: above what is promised to those who wait, or as set."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy_server.config import ConfigError, load_config
from policy_server.envoy_config.overload import CUT_FROM, MIB, STREAM_BYTES, heap_bytes
from tests.unit.envoy_config.test_bootstrap import build


def bound(tmp_path: Path, text: str) -> int:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return heap_bytes(load_config(file, {}))


@pytest.mark.parametrize(
    ("text", "requests", "bodies"),
    [
        ("", 10_000, 256 * MIB),
        ("room: {max_requests: 50000, max_bytes: 4GiB}", 50_000, 4096 * MIB),
        ("pools: [{name: a, match: {model: x}}, {name: b}]", 20_000, 512 * MIB),
    ],
)
def test_full_waiting_rooms_fit_below_the_first_cut(
    tmp_path: Path, text: str, requests: int, bodies: int
) -> None:
    heap = bound(tmp_path, text)
    assert CUT_FROM * heap > requests * STREAM_BYTES + bodies + 256 * MIB
    assert CUT_FROM * heap < 1.3 * (requests * STREAM_BYTES + bodies + 400 * MIB)


@pytest.mark.parametrize(
    ("text", "machine", "heap"),
    [
        ("", 1024 * MIB, 0.6 * 1024 * MIB),
        ("", 32 * MIB, 64 * MIB),  # less than Envoy needs while it is idle would refuse all
        ("room: {max_requests: 10}", 1 << 40, 856 * MIB),
        ("envoy: {max_heap: 900MiB}", 1024 * MIB, 900 * MIB),
    ],
)
def test_on_a_known_machine_no_more_than_its_share(
    tmp_path: Path, text: str, machine: int, heap: float
) -> None:
    data = build(tmp_path, text, memory_bytes=machine)
    monitors = data["overload_manager"]["resource_monitors"]
    bound = next(one for one in monitors if one["name"].endswith("fixed_heap"))["typed_config"]
    assert abs(int(bound["max_heap_size_bytes"]) - heap) <= 1


def test_what_is_set_counts_and_reaches_envoy(tmp_path: Path) -> None:
    text = "envoy: {max_heap: 512MiB}"
    assert bound(tmp_path, text) == 512 * MIB
    monitors = build(tmp_path, text)["overload_manager"]["resource_monitors"]
    heap = next(one for one in monitors if one["name"].endswith("fixed_heap"))
    assert int(heap["typed_config"]["max_heap_size_bytes"]) == 512 * MIB


def test_less_than_an_idle_envoy_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"envoy\.max_heap"):
        bound(tmp_path, "envoy: {max_heap: 1MiB}")
