"""What a configuration names: each useless file is told by its key, before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from policy_server.config import Config, ConfigError
from policy_server.config_check import HELD_BYTES, check_files, warnings_of
from policy_server.telemetry.logs import MAX_VALUE_CHARS

TLS = Path(__file__).parents[1] / "support" / "tls"
CERT, KEY = TLS / "localhost.pem", TLS / "localhost.key"
GIB = 1024**3
NOWHERE = Path("no-such-folder")


def config(**server: Any) -> Config:
    return Config.model_validate({"server": server})


def tls(**changes: Any) -> Config:
    return config(tls={"cert": CERT, "key": KEY, **changes})


def test_files_that_fit_are_fine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("correct-horse-battery\n")
    made = tls(client_ca=CERT, server_ca=CERT, client_cert=CERT, client_key=KEY)
    check_files(made, NOWHERE)
    check_files(config(admin_token_file=token), NOWHERE)
    check_files(Config(), tmp_path / "new")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of no use, by what is wrong with them."""
    folder = tmp_path_factory.mktemp("files")
    found = {name: folder / name for name in ("empty", "text", "short")}
    found["empty"].touch()
    found["text"].write_text("no certificate")
    found["short"].write_text("secret")
    keys = {name: TLS / f"{name}.key" for name in ("other", "ed25519", "locked")}
    return {**found, **keys, "missing": folder / "missing", "folder": folder}


@pytest.mark.parametrize(
    ("key", "file", "message"),
    [
        ("cert", "missing", "server.tls.cert: FILE cannot be read (No such file or directory)"),
        ("key", "missing", "server.tls.key: FILE cannot be read"),
        ("key", "folder", "server.tls.key: FILE cannot be read (Is a directory)"),
        ("cert", "text", "server.tls.cert: FILE and "),
        ("key", "empty", "are no certificate and key in PEM; give such files"),
        ("key", "other", f"server.tls.key: FILE is not the key of {CERT}; give its key"),
        ("key", "ed25519", f"server.tls.key: FILE is not the key of {CERT}; give its key"),
        ("key", "locked", "server.tls.key: FILE is encrypted; give a key without a password"),
        ("client_ca", "text", "server.tls.client_ca: FILE holds no certificate in PEM"),
        ("client_ca", "missing", "server.tls.client_ca: FILE cannot be read"),
        ("server_ca", "empty", "server.tls.server_ca: FILE holds no certificate in PEM"),
        ("client_cert", "text", "client_cert and client_key belong together; give both"),
    ],
)
def test_a_useless_certificate_or_key(
    files: dict[str, Path], key: str, file: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_files(tls(**{key: files[file]}), NOWHERE)
    assert message.replace("FILE", str(files[file])) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "message"),
    [("missing", "FILE cannot be read"), ("text", "FILE holds no certificate in PEM")],
)
def test_a_useless_ca_of_the_back_ends(files: dict[str, Path], file: str, message: str) -> None:
    made = Config.model_validate({"pools": [{"ca_file": files[file]}]})
    with pytest.raises(ConfigError) as caught:
        check_files(made, NOWHERE)
    said = f"pools[0].ca_file: {message}".replace("FILE", str(files[file]))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("file", "message"),
    [("missing", "cannot be read"), ("short", "needs at least 16 characters, has 6")],
)
def test_a_useless_token(files: dict[str, Path], file: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"server.admin_token_file: .*{message}"):
        check_files(config(admin_token_file=files[file]), NOWHERE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is a folder; name a file in it"),
        ("text/journal.db", "text cannot be written to; choose another folder"),
    ],
)
def test_a_journal_that_can_never_be_made(files: dict[str, Path], path: str, message: str) -> None:
    made = Config.model_validate({"journal": {"path": files["folder"] / path}})
    with pytest.raises(ConfigError, match=f"journal.path: .*{message}"):
        check_files(made, NOWHERE)


def test_the_journal_is_looked_for_where_the_server_keeps_it(files: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"text/journal\.db: .*text cannot be written to"):
        check_files(Config(), files["text"])
    set_by_path = Config.model_validate({"journal": {"path": files["folder"] / "own.db"}})
    check_files(set_by_path, files["text"])


def test_a_journal_on_a_disk_that_is_read_only_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only = os.statvfs_result((*os.statvfs(tmp_path)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be written to"):
        check_files(Config(), tmp_path)
    (tmp_path / "journal.db").touch()
    check_files(Config(), tmp_path)


def room(requests: int, pools: int = 1) -> Config:
    names = [{"name": f"p{n}", "match": {"model": f"m{n}"}} for n in range(pools)]
    return Config.model_validate({"room": {"max_requests": requests}, "pools": names})


def test_a_room_that_fits_needs_no_words() -> None:
    assert warnings_of(room(10_000), GIB) == []
    assert warnings_of(Config()) == []  # on the machine that runs this


def test_a_room_larger_than_the_memory_is_warned_of() -> None:
    (warning,) = warnings_of(room(10_000_000), GIB)
    assert "room.max_requests: 10,000,000 waiting requests need about 228.9 GiB" in warning
    assert "there are 1.0 GiB here" in warning
    assert len(warning) <= MAX_VALUE_CHARS, "a log line would cut it"
    fits = int(warning.rsplit("; ", 1)[1].split()[0].replace(",", ""))
    assert warnings_of(room(fits), GIB) == []
    assert fits * HELD_BYTES > 0.7 * GIB


def test_every_pool_has_a_room_of_its_own() -> None:
    (warning,) = warnings_of(room(20_000, pools=2), GIB)
    assert "40,000 waiting requests" in warning
    assert warnings_of(room(20_000), GIB) == []
