"""Secrets at rest: sealed for one job, with a key that only its owner may read."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from policy_server.jobs.vault import (
    KEY_FILE,
    KEY_VARIABLE,
    Vault,
    VaultError,
    key_that_is_there,
    load_key,
    split_secrets,
)

SECRET = (("authorization", "Bearer abc"), ("cookie", "a=b"), ("x-api-key", "k"))


def test_what_is_sealed_is_opened_for_the_same_job_only() -> None:
    vault = Vault(bytes(32))
    sealed = vault.seal("one", SECRET)
    assert b"abc" not in sealed
    assert vault.open("one", sealed) == SECRET
    assert vault.seal("one", SECRET) != sealed
    for job, other in (("two", vault), ("one", Vault(bytes(31) + b"x"))):
        with pytest.raises(VaultError, match="can't be read"):
            other.open(job, sealed)
    with pytest.raises(VaultError):
        vault.open("one", sealed[:5])


def test_of_a_webhook_only_the_receiver_can_be_read() -> None:
    vault, url = Vault(bytes(32)), "https://Hooks.example.com:8443/T0/B0?token=secret"
    kept = vault.seal_url("one", url)
    assert kept.startswith("sealed+https://Hooks.example.com:8443/")
    assert "T0" not in kept
    assert "secret" not in kept
    assert vault.open_url("one", kept) == url
    for job, other in (("two", vault), ("one", Vault(bytes(31) + b"x"))):
        with pytest.raises(VaultError, match="can't be read"):
            other.open_url(job, kept)


def test_no_webhook_stays_none_and_an_old_one_is_as_it_came() -> None:
    vault = Vault(bytes(32))
    assert vault.seal_url("one", "") == ""
    assert vault.open_url("one", "") == ""
    assert vault.open_url("one", "https://hooks.example.com/x") == "https://hooks.example.com/x"


def test_a_server_that_seals_nothing_takes_the_key_that_is_there(tmp_path: Path) -> None:
    assert len(key_that_is_there(tmp_path, {})) == 32
    assert list(tmp_path.iterdir()) == []
    key = load_key(tmp_path, {})
    assert key_that_is_there(tmp_path, {}) == key
    assert len(key_that_is_there(tmp_path, {KEY_VARIABLE: "nonsense"})) == 32


def test_nothing_to_hide_costs_nothing() -> None:
    vault = Vault(bytes(32))
    assert vault.seal("one", ()) == b""
    assert vault.open("one", b"") == ()


def test_the_secrets_are_taken_out_in_order() -> None:
    mixed = (SECRET[0], ("accept", "*/*"), *SECRET[1:])
    assert split_secrets(mixed) == ((("accept", "*/*"),), SECRET)


def test_the_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    key = load_key(folder, {})
    assert len(key) == 32
    assert load_key(folder, {}) == key
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == [KEY_FILE]


def test_a_group_may_read_the_key_as_kubernetes_makes_it_on_a_volume(tmp_path: Path) -> None:
    key = load_key(tmp_path, {})
    (tmp_path / KEY_FILE).chmod(0o660)
    assert load_key(tmp_path, {}) == key


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o666])
def test_a_key_that_everybody_may_use_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    load_key(tmp_path, {})
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(VaultError, match="chmod 600"):
        load_key(tmp_path, {})


def test_a_damaged_key_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    (tmp_path / KEY_FILE).chmod(0o600)
    with pytest.raises(VaultError, match="5 bytes"):
        load_key(tmp_path, {})


def test_the_environment_brings_a_key(tmp_path: Path) -> None:
    key = bytes(range(32))
    given = {KEY_VARIABLE: base64.b64encode(key).decode()}
    assert load_key(tmp_path, given) == key
    assert not list(tmp_path.iterdir())
    for bad in ("x", "####", "é", base64.b64encode(b"short").decode()):
        with pytest.raises(VaultError, match="head -c 32"):
            load_key(tmp_path, {KEY_VARIABLE: bad})
