"""Where a webhook may go: allowed hosts only, and no address of ours unless it is allowed as one.

    jobs.webhooks.allow: [hooks.example.com, "*.example.org", 10.1.0.0/16]

A name allows the host; it must then resolve to public addresses. A network allows its addresses,
private ones too, also for allowed names. The name is resolved once per try and the connection goes
to the address that was looked at, so that a second answer of the DNS changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

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
    """The address; an IPv6 address that only stands for an IPv4 one is that."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    inside = _inside(address) if isinstance(address, ipaddress.IPv6Address) else None
    return inside or address


_TRANSLATED = tuple(
    ipaddress.ip_network(text)  # compatible, mapped, translated (SIIT), NAT64
    for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)
"""IPv6 networks whose last 32 bits are the IPv4 address that a packet ends at."""
_TUNNELS = tuple(
    ipaddress.ip_network(text) for text in ("2002::/16", "2001::/32", "64:ff9b:1::/48")
)
"""6to4, Teredo and the NAT64 of one's own: they lead to an IPv4 address that nobody vouches for,
and where it stands in the last of them is the operator's choice. None is where webhooks live."""
_OURS_ONLY = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments; one cloud's metadata is at 192.0.0.192
        "192.88.99.0/24",  # the 6to4 relays that once were
        "168.63.129.16/32",  # Azure's own server, from within each of its machines
        "fec0::/10",  # site-local: as private as fc00::/7, which followed it
        "100::/64",  # discarded
        "2001::/23",  # protocol assignments
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
    )
)
"""What the standard library takes for public, or did in one of its versions."""


def _inside(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if not any(address in network for network in _TRANSLATED) or int(address) < 1 << 16:
        return None  # :: and ::1 are themselves
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def _is_public(address: Address) -> bool:
    """A global unicast address: nothing private, link-local (where clouds keep their metadata),
    loopback, reserved, or a tunnel to an IPv4 address."""
    if any(address in network for network in (*_TUNNELS, *_OURS_ONLY)):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


class PinnedResolver(AbstractResolver):
    """Resolves, and gives only addresses that may be called. The connection takes these, no others
    are ever asked for. It has threads of its own: a name server that hangs keeps nothing waiting
    that does not ask it."""

    def __init__(self, allowed: Callable[[], AllowList], at_once: int) -> None:
        self._allowed = allowed
        self._threads = ThreadPoolExecutor(at_once, "webhook-dns")

    async def resolve(
        self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses; OSError when none of them may be called."""
        ask = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        usable = [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in found
            if self._allowed().takes_address(str(address[0]))
        ]
        if not usable:
            raise OSError(None, f"{host} has no address that a webhook may go to")
        return usable

    async def close(self) -> None:
        """Let go of the threads that wait for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
