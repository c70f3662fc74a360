"""Is anybody there? Asked once before a run, so that a typo in the URL is not a table of zeros."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from policy_server.commands import reason

CONNECT_WITHIN_S = 10.0
PORTS = {"http": 80, "https": 443}


class UnreachableError(ConnectionError):
    """Nobody answers; the message is one line with the way out."""


async def check_reachable(url: str) -> None:
    """Opens a connection and closes it. Raises UnreachableError."""
    parts = urlsplit(url)
    port = parts.port or PORTS[parts.scheme]
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await _connect(parts.hostname or "", port)
    except TimeoutError:
        raise UnreachableError(_problem(url, f"nothing within {CONNECT_WITHIN_S:g} s")) from None
    except OSError as error:
        raise UnreachableError(_problem(url, reason(error))) from None


async def _connect(host: str, port: int) -> None:
    """To the first address that takes it, else the first refusal."""
    loop = asyncio.get_running_loop()
    failures: list[OSError] = []
    for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                await loop.sock_connect(probe, address)
            except OSError as error:
                failures.append(error)
            else:
                return
    raise failures[0]


def _problem(url: str, reason: str) -> str:
    return f"{url}: cannot connect ({reason}): is the gateway running? --url names another"
