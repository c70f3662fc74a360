"""Every generated file, and every kind of option, is a configuration that the real Envoy takes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from policy_server.config import load_config
from policy_server.envoy_config.bootstrap import build_bootstrap
from policy_server.envoy_config.options import GatewayOptions, Upstream
from policy_server.envoy_config.plain import to_yaml
from tests.support.envoy_process import envoy_binary
from tests.support.generated_config import FOLDER
from tests.support.wired import TLS

KEYS = {"tls_cert": str(TLS / "localhost.pem"), "tls_key": str(TLS / "localhost.key")}
CA = {"upstream_ca": str(TLS / "ca.pem")}


def validate(file: Path) -> None:
    command = [envoy_binary(), "--mode", "validate", "-c", str(file), "--use-dynamic-base-id"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("file", sorted(FOLDER.glob("bootstrap-*.yaml")), ids=lambda f: f.name)
def test_a_checked_in_file(file: Path) -> None:
    validate(file)


@pytest.mark.parametrize(
    ("urls", "options"),
    [
        (["http://127.0.0.1:1", "http://127.0.0.1:2"], {"on_outage": "open"}),
        (["http://a.test", "http://10.0.0.1"], {"host": "::", "policy_host": "policy.test"}),
        (["https://a.test", "https://b.test:8443"], {**KEYS, **CA}),
        (["https://10.0.0.1"], CA),
        (["grpc://a.test:50051"], {"gate_rate_per_s": 1}),
        (["http://10.0.0.1"], {"wiring": "authz", "on_outage": "open"}),
        (["http://a.test", "http://b.test"], {"wiring": "stream", "on_outage": "open"}),
    ],
)
def test_a_kind_of_gateway(tmp_path: Path, urls: list[str], options: dict[str, Any]) -> None:
    config = tmp_path / "policy.yaml"
    config.write_text(
        f"server: {{tls: {{cert: {KEYS['tls_cert']}, key: {KEYS['tls_key']}}}}}\n"
        "govern: {methods: [POST, GET], paths: [/v1/, /v2]}\n"
        "tenants: {from: 'metadata:a/b'}\n"
        "classes: {P2: {max_wait_s: 3500}}\n"
    )
    chosen = GatewayOptions(tuple(Upstream.parse(url) for url in urls), **options)
    file = tmp_path / "bootstrap.yaml"
    file.write_text(to_yaml(build_bootstrap(load_config(config, {}), chosen)))
    validate(file)
