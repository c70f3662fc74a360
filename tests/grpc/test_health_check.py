"""`policy-server health` against a real server with TLS, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from policy_server.adapters.grpc_server import ServerTls, build_grpc_server
from policy_server.adapters.health_check import UnhealthyError, ask_health
from policy_server.config import Config
from tests.support.certificates import write_tls
from tests.support.fake_gate import FakeGate
from tests.support.services import services_of

SERVICE = x509.DNSName("policy-server.policy.svc")


@asynccontextmanager
async def serving(files: dict[str, Path], client_ca: Path | None = None) -> AsyncIterator[str]:
    """Its address."""
    tls = ServerTls(files["cert"], files["key"], client_ca=client_ca)
    server = build_grpc_server("127.0.0.1:0", services_of(FakeGate())[1], tls)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)


def config_of(address: str, **files: Path) -> Config:
    tls = {name: str(file) for name, file in files.items()}
    return Config.model_validate({"server": {"grpc": address, "tls": tls}})


async def ask(config: Config) -> str:
    return await asyncio.to_thread(ask_health, config, None, 10.0)


@pytest.mark.parametrize(
    "names",
    [
        (SERVICE,),
        (x509.DNSName("*.policy.svc"),),
        (x509.UniformResourceIdentifier("spiffe://a/b"), SERVICE),
        (x509.IPAddress(ip_address("10.1.2.3")),),
        (),
    ],
    ids=["dns", "wildcard", "spiffe and dns", "address of a service", "common name only"],
)
@pytest.mark.parametrize("ca", [True, False], ids=["with its CA", "alone"])
async def test_a_certificate_need_not_name_loopback(
    tmp_path: Path, names: tuple[x509.GeneralName, ...], ca: bool
) -> None:
    files = write_tls(tmp_path, *names, common="policy.example")
    known = {"server_ca": files["ca"]} if ca else {}
    async with serving(files) as address:
        config = config_of(address, cert=files["cert"], key=files["key"], **known)
        assert await ask(config) == "SERVING"


async def test_it_shows_a_certificate_where_one_is_wanted(tmp_path: Path) -> None:
    """One CA for both sides, as `client_ca` alone says."""
    files = write_tls(tmp_path, SERVICE)
    async with serving(files, client_ca=files["ca"]) as address:
        known = {"client_ca": files["ca"]}
        config = config_of(address, cert=files["cert"], key=files["key"], **known)
        assert await ask(config) == "SERVING"


async def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    ours, other = (write_tls(tmp_path / name, SERVICE) for name in ("ours", "other"))
    async with serving(other) as address:
        config = config_of(address, cert=ours["cert"], key=ours["key"], server_ca=ours["ca"])
        with pytest.raises(UnhealthyError, match="is the policy server running"):
            await ask(config)


async def test_a_certificate_without_any_name_is_told_apart(tmp_path: Path) -> None:
    files = write_tls(tmp_path, x509.UniformResourceIdentifier("spiffe://a/b"), common="")
    with pytest.raises(UnhealthyError, match="names neither a host nor an address"):
        await ask(config_of("127.0.0.1:1", cert=files["cert"], key=files["key"]))


async def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    files = write_tls(tmp_path, SERVICE)
    with pytest.raises(UnhealthyError, match=r"key\.pem is no certificate"):
        await ask(config_of("127.0.0.1:1", cert=files["key"], key=files["key"]))


async def test_without_tls_the_hint_names_it(tmp_path: Path) -> None:
    files = write_tls(tmp_path, SERVICE)
    async with serving(files) as address:
        with pytest.raises(UnhealthyError, match="wants TLS, name its --config"):
            await ask(Config.model_validate({"server": {"grpc": address}}))
