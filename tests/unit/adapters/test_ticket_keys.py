"""The key file: made once, private, shared, rotated without a ticket becoming worthless."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from policy_server.adapters.ticket_keys import (
    RETIRES_AFTER_S,
    ROTATE_S,
    SIGNS_AFTER_S,
    KeyFile,
    TicketKeyError,
)

NOW = 1_800_000_000.0
LATER = NOW + ROTATE_S + 1


def opened(path: Path, wall: float = NOW) -> KeyFile:
    keys = KeyFile(path)
    keys.open(wall)
    return keys


def test_it_is_made_at_the_first_start_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ticket-keys"
    first = opened(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.tick(NOW) is None
    assert opened(path, NOW + 5).signing(NOW + 5) == first.signing(NOW)


def test_servers_that_share_it_accept_each_others_tickets_throughout_a_rotation(
    tmp_path: Path,
) -> None:
    one, two = opened(tmp_path / "k"), opened(tmp_path / "k")
    old = one.signing(NOW)
    one.tick(LATER)
    assert one.signing(LATER) == old, "the other does not know the new one yet"
    assert two.tick(LATER + 1) is None
    after = LATER + SIGNS_AFTER_S + 1
    new = one.signing(after)
    assert new != old
    assert two.signing(after) == new
    assert old in two.accepted(after)
    assert {*one.accepted(after)} == {*two.accepted(after)}


def test_only_one_of_many_rotates(tmp_path: Path) -> None:
    servers = [opened(tmp_path / "k") for _ in range(5)]
    for server in servers:
        server.tick(LATER)
    assert len((tmp_path / "k").read_text().splitlines()) == 2
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600


def test_a_replaced_key_is_accepted_for_the_life_of_its_tickets_and_no_longer(
    tmp_path: Path,
) -> None:
    keys = opened(tmp_path / "k")
    old = keys.signing(NOW)
    keys.tick(LATER)
    assert old in keys.accepted(LATER + RETIRES_AFTER_S)
    assert old not in keys.accepted(LATER + RETIRES_AFTER_S + 2 * SIGNS_AFTER_S)
    keys.tick(LATER + ROTATE_S + 1)
    assert old.hex() not in (tmp_path / "k").read_text()


@pytest.mark.parametrize("text", ["", "\n\n", "secret", "12 abcd", "é" * 70, "1 " + "zz" * 32])
def test_a_file_without_keys_is_refused_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(TicketKeyError, match=r"Remove the file") as caught:
        opened(tmp_path / "k")
    assert str(tmp_path / "k") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TicketKeyError, match=r"data-dir"):
        opened(tmp_path / "file" / "k")


def test_a_file_broken_while_running_is_told_and_the_keys_stay(tmp_path: Path) -> None:
    keys = opened(tmp_path / "k")
    before = keys.signing(NOW)
    (tmp_path / "k").write_text("oops")
    assert "Remove the file" in (keys.tick(NOW + 1) or "")
    assert keys.signing(NOW + 2) == before
    (tmp_path / "k").unlink()
    assert str(tmp_path / "k") in (keys.tick(NOW + 3) or "")
    assert keys.signing(NOW + 3) == before


def test_a_file_that_others_can_read_is_told(tmp_path: Path) -> None:
    keys = opened(tmp_path / "k")
    (tmp_path / "k").chmod(0o644)
    assert "chmod 600" in (keys.tick(NOW) or "")
    (tmp_path / "k").chmod(0o600)
    assert keys.tick(NOW) is None


def test_a_key_that_its_owner_adds_by_hand_is_taken_up(tmp_path: Path) -> None:
    keys = opened(tmp_path / "k")
    added = "ab" * 32
    with (tmp_path / "k").open("a") as file:
        file.write(f"{int(NOW) + 100} {added}\n")
    keys.tick(NOW + 101)
    assert keys.signing(NOW + 101).hex() != added
    assert keys.signing(NOW + 120).hex() == added
