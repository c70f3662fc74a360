"""Where a webhook may go."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from policy_server.jobs.addresses import AllowList, PinnedResolver

LIST = AllowList.parse(["hooks.example.com", "*.example.org", "10.1.0.0/16", "fd00::/8"])


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://hooks.example.com/x", True),
        ("http://HOOKS.example.com.:8080/x?y=1", True),
        ("https://a.example.org/", True),
        ("https://a.b.example.org/", True),
        ("https://example.org/", False),
        ("https://evil-example.org/", False),
        ("https://hooks.example.com.evil.net/", False),
        ("https://user:pw@hooks.example.com/", False),
        ("ftp://hooks.example.com/", False),
        ("https:///x", False),
        ("https://hooks.example.com:99999/", False),
        ("https://10.1.2.3/", True),
        ("https://10.2.0.1/", False),
        ("https://8.8.8.8/", False),
        ("http://[fd00::1]/", True),
        ("http://[::ffff:10.1.0.1]/", True),
        ("http://[::ffff:127.0.0.1]/", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("http://localhost/", False),
        ("http://[bad", False),
        ("", False),
    ],
)
def test_urls(url: str, allowed: bool) -> None:
    assert LIST.takes_url(url) is allowed


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.9.9", True),
        ("10.2.9.9", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::5", True),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("192.0.0.192", False),
        ("168.63.129.16", False),
        ("192.88.99.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("fec0::1", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
        ("ff0e::1", False),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("64:ff9b:1::7f00:1", False),
        ("64:ff9b:1:ffff::808:808", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b::a01:1", True),
        ("::ffff:93.184.216.34", True),
        ("2001:0:808:808::1", False),
        ("2002:808:808::1", False),
        ("no address", False),
    ],
)
def test_addresses(address: str, allowed: bool) -> None:
    assert LIST.takes_address(address) is allowed


async def test_a_name_that_leads_home_is_not_called() -> None:
    with pytest.raises(OSError, match="no address that a webhook may go to"):
        await PinnedResolver(lambda: AllowList.parse(["localhost"]), 1).resolve("localhost", 80)
    at_home = PinnedResolver(lambda: AllowList.parse(["localhost", "127.0.0.0/8", "::1"]), 1)
    found = await at_home.resolve("localhost", 80)
    assert {one["host"] for one in found} <= {"127.0.0.1", "::1"}
    await at_home.close()


async def test_a_name_server_that_hangs_keeps_no_other_name_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go, look_up = threading.Event(), socket.getaddrinfo

    def slow(host: str, *more: Any) -> Any:
        if host == "dead.example":
            let_go.wait(30)
        return look_up("localhost", *more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    at_home = PinnedResolver(lambda: AllowList.parse(["127.0.0.0/8", "::1"]), 64)
    hanging = [asyncio.create_task(at_home.resolve("dead.example", 80)) for _ in range(40)]
    async with asyncio.timeout(20):
        assert await at_home.resolve("well.example", 80)
        await asyncio.get_running_loop().run_in_executor(None, int)  # nor anything else
    assert not any(task.done() for task in hanging)
    let_go.set()
    await asyncio.gather(*hanging)
    await at_home.close()
