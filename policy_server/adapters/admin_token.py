"""The admin token of the HTTP API: one secret in a file, compared in constant time.

The file is read again when it changes, so that a rotated secret needs no restart. While it can't be
read, or is empty, nobody gets in: an open door must never be the result of a bad mount.
"""

from __future__ import annotations

import base64
import binascii
from hmac import compare_digest
from pathlib import Path

from policy_server.config_types import MIN_TOKEN_CHARS


class AdminTokenError(Exception):
    """The token file is of no use; the message says why and what to do."""


class AdminToken:
    """The token in `path`; white space around it does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._token = b""

    def load(self) -> None:
        """Read the file if it has changed. Raises `AdminTokenError`."""
        try:
            stat = self._path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if version == self._version:
                return
            token = self._path.read_bytes().strip()
        except OSError as error:
            self._version = None
            raise AdminTokenError(
                f"admin token file {self._path}: {error.strerror or error}"
            ) from None
        if len(token) < MIN_TOKEN_CHARS:
            self._version = None
            raise AdminTokenError(
                f"admin token file {self._path}: needs at least {MIN_TOKEN_CHARS} characters, "
                f"has {len(token)}"
            )
        self._version, self._token = version, token

    def admits(self, authorization: str) -> bool:
        """Whether this `Authorization` header carries the token. Raises `AdminTokenError`.

        `Bearer TOKEN` for tools; `Basic` with any user and the token as the password for browsers,
        which can't be told to send a bearer token.
        """
        self.load()
        return compare_digest(_presented(authorization), self._token)


def _presented(authorization: str) -> bytes:
    scheme, _, rest = authorization.partition(" ")
    credentials = rest.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "bearer":
        return credentials
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
