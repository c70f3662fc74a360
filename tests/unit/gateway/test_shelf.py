"""What the gateway generates has a place also while the data directory takes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policy_server import private_file
from policy_server.gateway.shelf import DISK_TROUBLE, Shelf


def test_it_lies_in_the_data_directory_for_our_eyes_only(tmp_path: Path) -> None:
    said: list[str] = []
    where = Shelf(tmp_path, said.append).put("envoy.yaml", b"secret")
    assert where == tmp_path / "envoy.yaml"
    assert where.stat().st_mode & 0o777 == 0o600
    assert said == []


@pytest.mark.parametrize("code", sorted(DISK_TROUBLE))
def test_a_disk_in_trouble_is_told_once_and_gone_without(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, said = private_file.replace, list[str]()

    def failing(path: Path, data: bytes) -> None:
        if path.parent == tmp_path:
            raise OSError(code, os.strerror(code))
        replace(path, data)

    monkeypatch.setattr(private_file, "replace", failing)
    shelf = Shelf(tmp_path, said.append)
    first, second = shelf.put("a", b"1"), shelf.put("b", b"2")
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")
    assert first.parent == second.parent != tmp_path
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert len(said) == 1
    assert os.strerror(code) in said[0]
    shelf.clear()
    assert not first.parent.exists()


def test_a_folder_that_is_the_wrong_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Shelf(tmp_path / "nowhere", lambda _: None).put("a", b"1")
