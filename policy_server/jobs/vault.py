"""Secrets of jobs at rest, encrypted with AES-GCM: the query of the request target, the headers
whose names say that they prove who the client is, and where its webhook is.

Kept apart from the rest, opened in the moment of the dispatch or the call, dropped when the job
ends or the webhook has been told, never logged. The key comes from `POLICY_JOBS_KEY` (base64 of 32
bytes), else from `jobs.key` in the data directory, which is made at the first start and readable by
its owner only.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from policy_server import private_file
from policy_server.journal.jobs import Headers

_SECRET_NAME = re.compile(
    "key|token|secret|auth|cookie|credential|passw|signature|session|jwt", re.IGNORECASE
)
"""A header with this in its name is sealed: one list of names never has all that gateways use."""
_TARGET = ":path"
"""Among what is sealed the request target, when it has a query: that may hold a key, too."""
_WEBHOOK = ":webhook"
"""The name under which a webhook's URL is sealed: no header can have it."""
_SEALED = "sealed+"
KEY_VARIABLE = "POLICY_JOBS_KEY"
KEY_FILE = "jobs.key"
LOST_VARIABLE, ACCEPT = "POLICY_JOBS_KEY_LOST", "accept"
KEY_BYTES = 32
NONCE_BYTES = 12


class VaultError(Exception):
    """A key or a secret is of no use; the message says which and what to do."""


class Vault:
    """Seals and opens the secrets of single jobs."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._fingerprint = hmac.new(key, b"policy-server jobs", sha256).hexdigest()[:32]

    def seal(self, job_id: str, headers: Headers) -> bytes:
        """Encrypt the headers; they can be opened for this job only. b"" for none."""
        if not headers:
            return b""
        nonce = secrets.token_bytes(NONCE_BYTES)
        text = json.dumps(headers).encode()
        return nonce + self._cipher.encrypt(nonce, text, job_id.encode())

    @property
    def fingerprint(self) -> str:
        """Tells one key from another, and nothing about it."""
        return self._fingerprint

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

    def seal_url(self, job_id: str, url: str) -> str:
        """A webhook's URL as it is kept: scheme, host and port can be read, so that calls to one
        receiver are told from those to others; path and query, often a secret, can't. "" for ""."""
        if not url:
            return ""
        parts = urlsplit(url)
        sealed = base64.urlsafe_b64encode(self.seal(job_id, ((_WEBHOOK, url),))).decode()
        return f"{_SEALED}{parts.scheme}://{parts.netloc}/{sealed}"

    def open_url(self, job_id: str, kept: str) -> str:
        """The URL as it came; one that was kept as it came before there was `seal_url` is given
        back. Raises `VaultError` when the key is another one."""
        if not kept.startswith(_SEALED):
            return kept
        sealed = base64.urlsafe_b64decode(kept.rpartition("/")[2])
        return dict(self.open(job_id, sealed))[_WEBHOOK]


def in_the_open(kept: str) -> str:
    """Scheme, host and port of a webhook's URL."""
    parts = urlsplit(kept.removeprefix(_SEALED))
    return f"{parts.scheme}://{parts.netloc}"


def another_key(jobs: int) -> str:
    """What is said when jobs wait whose secrets another key has sealed, and the way out."""
    return (
        f"jobs wait whose secrets another key has sealed than this server's ({jobs} of them): set "
        f"{KEY_VARIABLE} as it was, or restore {KEY_FILE} in the data directory. If that key is "
        f"lost, start once with {LOST_VARIABLE}={ACCEPT}: they will fail, new jobs are taken"
    )


def split_secrets(headers: Headers, tenant_header: str = "") -> tuple[Headers, Headers]:
    """(the others, the secrets), each in order. Who it is counts as a secret."""
    hidden = [name == tenant_header or _SECRET_NAME.search(name) for name, _ in headers]
    plain = tuple(h for h, hide in zip(headers, hidden, strict=True) if not hide)
    return plain, tuple(h for h, hide in zip(headers, hidden, strict=True) if hide)


def split_target(target: str) -> tuple[str, Headers]:
    """The path, and what of a request target is to be sealed with the headers."""
    path, question, _ = target.partition("?")
    return path, ((_TARGET, target),) if question else ()


def join_target(path: str, opened: Headers) -> tuple[str, Headers]:
    """The request target as it came, and the headers among what was sealed."""
    target = next((value for name, value in opened if name == _TARGET), path)
    return target, tuple(header for header in opened if header[0] != _TARGET)


def key_that_is_there(folder: Path, env: Mapping[str, str]) -> bytes:
    """The key for a server that seals nothing any more: none is made, and one that is of no use
    doesn't keep it from starting. Then it is one that opens nothing."""
    try:
        if env.get(KEY_VARIABLE) or (folder / KEY_FILE).exists():
            return load_key(folder, env)
    except (VaultError, OSError):
        pass
    return secrets.token_bytes(KEY_BYTES)


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
