"""What a configuration names but does not hold: certificates, keys, tokens, folders, memory.

`load_config` reads one file and no other, because a configuration may be written on another
machine than the one it is for. Here is the rest, for `check` and for a start.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from policy_server.config import Config
from policy_server.config_source import ConfigError
from policy_server.config_types import MIN_TOKEN_CHARS

HELD_BYTES = 24 * 1024
"""Memory of the policy server per waiting request, measured with thousands of them (make bench)."""
MEMORY_SHARE = 0.75
"""The rest is for the process itself and for those under way."""
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
GIB = 1024**3
_OF_ANOTHER = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


def check_files(config: Config, data_dir: Path) -> None:
    """Raises ConfigError with the key, the file and the fix for the first file of no use."""
    tls = config.server.tls
    if tls is not None:
        check_pair("server.tls.cert", tls.cert, "server.tls.key", tls.key)
        ours, key = tls.client_cert, tls.client_key
        if ours is not None and key is not None:
            check_pair("server.tls.client_cert", ours, "server.tls.client_key", key)
        elif ours is not None or key is not None:
            raise ConfigError("server.tls: client_cert and client_key belong together; give both")
        for name, ca in (("client_ca", tls.client_ca), ("server_ca", tls.server_ca)):
            if ca is not None:
                _check_ca(f"server.tls.{name}", ca)
    for number, pool in enumerate(config.pools):
        if pool.ca_file is not None:
            _check_ca(f"pools[{number}].ca_file", pool.ca_file)
    if config.server.admin_token_file is not None:
        _check_token(config.server.admin_token_file)
    _check_journal(config.journal.file_in(data_dir))


def check_pair(cert_name: str, cert: Path, key_name: str, key: Path) -> None:
    """A certificate and its key in PEM; the names are those of the settings."""
    _check_readable(cert_name, cert)
    _check_readable(key_name, key)
    asked: list[bool] = []

    def no_password() -> str:
        asked.append(True)
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, no_password)
    except (ssl.SSLError, ValueError) as error:
        if asked:
            raise ConfigError(
                f"{key_name}: {key} is encrypted; give a key without a password"
            ) from None
        if getattr(error, "reason", "") in _OF_ANOTHER:
            raise ConfigError(f"{key_name}: {key} is not the key of {cert}; give its key") from None
        raise ConfigError(
            f"{cert_name}: {cert} and {key} are no certificate and key in PEM; give such files"
        ) from None


def _check_ca(name: str, ca: Path) -> None:
    _check_readable(name, ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(ca)
    except ssl.SSLError:
        raise ConfigError(f"{name}: {ca} holds no certificate in PEM; give one that does") from None


def _check_token(path: Path) -> None:
    name = "server.admin_token_file"
    _check_readable(name, path)
    length = len(path.read_bytes().strip())
    if length < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"{name}: {path}: needs at least {MIN_TOKEN_CHARS} characters, has {length}"
        )


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{name}: {path} cannot be read ({error.strerror}); give a readable file"
        ) from None


def _check_journal(path: Path) -> None:
    """The file need not exist, but it must be possible to make it. One on a disk that is read-only
    is no mistake: it is read, and written again once the disk takes it."""
    name = "journal.path"
    if path.is_dir():
        raise ConfigError(f"{name}: {path} is a folder; name a file in it")
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if path.is_file() and os.statvfs(path).f_flag & os.ST_RDONLY:
        return
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{name}: {path}: {folder} cannot be written to; choose another folder")


def warnings_of(config: Config, memory_bytes: int | None = None) -> list[str]:
    """What is allowed and hardly meant. `memory_bytes`: of this machine, None = look."""
    memory = memory_bytes or machine_memory()
    places = config.room.max_requests * len(config.pools)
    need = places * HELD_BYTES
    if not memory or need <= MEMORY_SHARE * memory:
        return []
    return [
        f"room.max_requests: {places:,} waiting requests need about {_gib(need)} at 24 KiB each, "
        f"there are {_gib(memory)} here: it would be killed before the room is full; "
        f"{int(MEMORY_SHARE * memory / HELD_BYTES / len(config.pools)):,} fit"
    ]


def machine_memory() -> int:
    """What this process may use, bytes; 0 = unknown."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in CGROUP_LIMITS:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # no such hierarchy, or "max"
            continue
    return max(0, min(limits))


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
