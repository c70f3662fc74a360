"""Reads a running policy server over its HTTP port."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from policy_server.config import ConfigError

ANSWER_WITHIN_S = 5.0

Json = dict[str, Any]


class NoAnswerError(ConnectionError):
    """There is nothing to show; the message is one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the server said. `history`: its /history, empty when it has none."""

    status: Json
    history: Json = field(default_factory=dict)


class Source:
    """One policy server. `url` is its HTTP port; `token` the admin token, "" for none."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str = "") -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._token = token

    async def status(self) -> Json:
        """`/statusz`. Raises NoAnswerError."""
        return await self._get("/statusz")

    async def history(self) -> Json:
        """`/history` by pool; nothing from a server that has none."""
        try:
            found: Json = (await self._get("/history"))["pools"]
        except (NoAnswerError, KeyError):
            return {}
        return found

    async def _get(self, path: str) -> Json:
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        try:
            async with self._http.get(self._url + path, headers=headers, timeout=timeout) as answer:
                text = await answer.text()
        except TimeoutError:
            raise NoAnswerError(
                f"{self._url} does not answer within {ANSWER_WITHIN_S:g} s: the policy server "
                "hangs, or something between here and there swallows packets"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswerError(
                f"{self._url} does not answer ({_reason(error)}): is the policy server running, "
                "and is this its HTTP port? --url names another"
            ) from None
        return self._document(answer.status, text)

    def _document(self, status: int, text: str) -> Json:
        if status == 401:
            told = "refuses this token: give --token-file the file of server.admin_token_file"
            raise NoAnswerError(
                f"{self._url} {told if self._token else 'wants the admin token: give --token-file'}"
            )
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if status == 200 and isinstance(document, dict) and "pools" in document:
            return document
        if status == 503:
            raise NoAnswerError(f"{self._url} says: {text.strip()[:200]}")
        raise NoAnswerError(
            f"{self._url} is not the HTTP port of a policy server (HTTP {status}); "
            "--url wants that one, 9003 by default"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error)
    return str(error) or type(error).__name__


def check_url(url: str) -> None:
    """Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url '{url}' is not a URL; give one like http://127.0.0.1:9003")


def read_token(path: Path | None) -> str:
    """The token in the file, "" without one. Raises ConfigError."""
    if path is None:
        return ""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"--token-file: {path} cannot be read ({reason}); give a readable file"
        ) from None
