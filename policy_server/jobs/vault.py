"""Secrets of jobs at rest: the headers that prove who the client is, encrypted with AES-GCM.

Kept apart from the other headers, opened in the moment of the dispatch, dropped when the job ends,
never logged. The key comes from `POLICY_JOBS_KEY` (base64 of 32 bytes), else from `jobs.key` in
the data directory, which is made at the first start and readable by its owner only.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from policy_server import private_file
from policy_server.journal.jobs import Headers

SECRET_HEADERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-auth-token",
    }
)
KEY_VARIABLE = "POLICY_JOBS_KEY"
KEY_FILE = "jobs.key"
KEY_BYTES = 32
NONCE_BYTES = 12


class VaultError(Exception):
    """A key or a secret is of no use; the message says which and what to do."""


class Vault:
    """Seals and opens the secrets of single jobs."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, job_id: str, headers: Headers) -> bytes:
        """Encrypt the headers; they can be opened for this job only. b"" for none."""
        if not headers:
            return b""
        nonce = secrets.token_bytes(NONCE_BYTES)
        text = json.dumps(headers).encode()
        return nonce + self._cipher.encrypt(nonce, text, job_id.encode())

    def open(self, job_id: str, sealed: bytes) -> Headers:
        """What was sealed. Raises `VaultError` when the key is another one."""
        if not sealed:
            return ()
        nonce, text = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            plain = self._cipher.decrypt(nonce, text, job_id.encode())
        except (InvalidTag, ValueError):
            raise VaultError(
                "the job's secrets can't be read: the key that sealed them is not this server's"
            ) from None
        return tuple((name, value) for name, value in json.loads(plain))


def split_secrets(headers: Headers) -> tuple[Headers, Headers]:
    """(the others, the secrets), each in order."""
    plain = tuple(h for h in headers if h[0] not in SECRET_HEADERS)
    return plain, tuple(h for h in headers if h[0] in SECRET_HEADERS)


def load_key(folder: Path, env: Mapping[str, str]) -> bytes:
    """The key, made if there is none yet. Raises `VaultError` or OSError."""
    if given := env.get(KEY_VARIABLE):
        try:
            key = base64.b64decode(given, validate=True)
        except ValueError:  # a character that is none of base64's, or of ASCII
            key = b""
        if len(key) != KEY_BYTES:
            raise VaultError(
                f"{KEY_VARIABLE}: not the base64 of {KEY_BYTES} bytes; make one with: "
                "head -c 32 /dev/urandom | base64"
            )
        return key
    path = folder / KEY_FILE
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_file.create(path, secrets.token_bytes(KEY_BYTES))
    if private_file.open_to_all(path.stat().st_mode):
        raise VaultError(f"{path}: everybody on this machine can read it; run: chmod 600 {path}")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise VaultError(
            f"{path}: {len(key)} bytes where a key has {KEY_BYTES}; restore it, or remove it and "
            "lose the secrets of the jobs that wait"
        )
    return key
