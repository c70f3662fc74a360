"""The dashboard and the alert rules, flattened to their expressions."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.support.container import DOCKER
from tests.support.promql import filled

NOT_EXPORTED_YET: set[str] = set()
"""Series that dashboards and rules may ask for before the policy server has them. A test forces
this list to shrink: what is exported must not be here."""


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    text = (DOCKER / "grafana/dashboards/policy-server.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def panels() -> list[dict[str, Any]]:
    """Its panels without the rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    rules = yaml.safe_load((DOCKER / "prometheus/alerts.yaml").read_text("utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """Where it stands → the expression."""
    found = {
        f"{panel['id']} {panel['title']} {target['refId']}": filled(target["expr"])
        for panel in panels()
        for target in panel["targets"]
    }
    found |= {rule["alert"]: rule["expr"] for rule in alerts()}
    notes = [one for one in dashboard()["annotations"]["list"] if "expr" in one]
    return found | {note["name"]: filled(note["expr"]) for note in notes}
