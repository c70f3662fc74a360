"""Private files: whole, for their owner only, nothing left beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy_server import private_file


def test_a_file_is_replaced_as_a_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"old and longer")
    path.chmod(0o644)
    private_file.replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_who_comes_second_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "key"
    private_file.create(path, b"first")
    private_file.create(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_goes_wrong_half_way_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        private_file.replace(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
