"""The files that are generated: `python -m tests.support.generated_config --write`.

Without `--write` it prints the names of those that differ and exits 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from policy_server.config import load_config
from policy_server.envoy_config.command import Asked, render
from policy_server.envoy_config.plain import to_yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "envoy"
DOCKER = ROOT / "docker"
UPSTREAM = ("http://127.0.0.1:8000",)
SERVICE = ("http://model.models:8000",)
FILES = {
    "bootstrap-gate.yaml": Asked(upstreams=UPSTREAM),
    "bootstrap-gate-open.yaml": Asked(on_outage="open", upstreams=UPSTREAM),
    "bootstrap-authz.yaml": Asked(wiring="authz", upstreams=UPSTREAM),
    "bootstrap-stream.yaml": Asked(wiring="stream", upstreams=UPSTREAM),
    "istio/gate.yaml": Asked("istio"),
    "istio/gate-open.yaml": Asked("istio", on_outage="open"),
    "istio/gate-values.yaml": Asked("istio-values"),
    "istio/authz.yaml": Asked("istio", "authz"),
    "istio/authz-values.yaml": Asked("istio-values", "authz"),
    "envoy-gateway/stream.yaml": Asked("envoy-gateway", "stream", upstreams=SERVICE),
    "envoy-gateway/authz.yaml": Asked("envoy-gateway", "authz", upstreams=SERVICE),
}


def generated() -> dict[str, str]:
    """File name → content, from the defaults."""
    defaults = load_config(None, {})
    return {name: render(defaults, asked) for name, asked in FILES.items()}


def prometheus_rule() -> str:
    """The alert rules once more, as an object of Prometheus' operator."""
    rules = yaml.safe_load((DOCKER / "prometheus/alerts.yaml").read_text("utf-8"))
    metadata = {"name": "policy-server", "namespace": "policy"}
    labels = {"app.kubernetes.io/name": "policy-server"}
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {**metadata, "labels": labels},
        "spec": rules,
    }
    return to_yaml(document, "Generated from prometheus/alerts.yaml, do not edit: make config")


def everything() -> dict[Path, str]:
    """Path → content of every generated file."""
    files = {FOLDER / name: text for name, text in generated().items()}
    return {**files, DOCKER / "kubernetes/prometheusrule.yaml": prometheus_rule()}


def main() -> int:
    """Writes, or names what differs."""
    wanted = everything()
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in stale:
        name = path.relative_to(ROOT)
        if "--write" in sys.argv[1:]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], "utf-8")
            print(f"wrote {name}")
        else:
            print(f"{name} differs from the generator; run: make config")
    return 1 if stale and "--write" not in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
