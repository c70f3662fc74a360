"""Where a webhook may go: allowed hosts only, and no address of ours unless it is allowed as one.

    jobs.webhooks.allow: [hooks.example.com, "*.example.org", 10.1.0.0/16]

A name allows the host; it must then resolve to public addresses. A network allows its addresses,
private ones too, also for allowed names. The name is resolved once per try and the connection goes
to the address that was looked at, so that a second answer of the DNS changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class AllowList:
    """What `jobs.webhooks.allow` says."""

    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Sequence[str]) -> AllowList:
        """Names and networks, told apart by their look."""
        names, networks = [], []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                names.append(entry.lower().rstrip("."))
        return cls(tuple(names), tuple(networks))

    def takes_url(self, url: str) -> bool:
        """Whether a webhook may have this URL; a name is looked up only when it is called."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not host or _has_user(parts):
            return False
        address = _address(host)
        if address is not None:
            return self._in_network(address)
        return self._takes_name(host.lower().rstrip("."))

    def takes_address(self, text: str) -> bool:
        """Whether a connection may go to this address."""
        address = _address(text)
        if address is None:
            return False
        return self._in_network(address) or _is_public(address)

    def _takes_name(self, host: str) -> bool:
        return any(
            host == name or (name.startswith("*.") and host.endswith(name[1:]))
            for name in self.names
        )

    def _in_network(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _has_user(parts: SplitResult) -> bool:
    return parts.username is not None or parts.password is not None


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _is_public(address: Address) -> bool:
    """A global unicast address: nothing private, link-local (where clouds keep their metadata),
    loopback, reserved, or an IPv4 address in IPv6 clothes."""
    if isinstance(address, ipaddress.IPv6Address) and (address.sixtofour or address.teredo):
        return False
    nat64 = ipaddress.ip_network("64:ff9b::/96")
    if address.version == nat64.version and address in nat64:
        return False
    return address.is_global and not address.is_multicast


class PinnedResolver(AbstractResolver):
    """Resolves, and gives only addresses that may be called. The connection takes these, no others
    are ever asked for."""

    def __init__(self, allowed: Callable[[], AllowList]) -> None:
        self._allowed = allowed
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses; OSError when none of them may be called."""
        found = await self._inner.resolve(host, port, family)
        usable = [one for one in found if self._allowed().takes_address(one["host"])]
        if not usable:
            raise OSError(None, f"{host} has no address that a webhook may go to")
        return usable

    async def close(self) -> None:
        """Let go of the resolver."""
        await self._inner.close()
