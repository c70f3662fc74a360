"""What a PromQL expression asks for, and whether a metrics page can answer it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

ADDED = {"job", "instance"}
"""Labels that Prometheus itself adds to what it scrapes."""
OF_PROMETHEUS = {"up", "ALERTS"}
Page = dict[str, dict[str, set[str]]]
"""Series name → its labels → the values that each has."""


@dataclass
class Asked:
    """One expression: its series with their conditions, and the labels it groups or joins by."""

    series: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


def asked(expression: str) -> Asked:
    """Raises ValueError with the reason when it is no PromQL."""
    found = Asked()

    def visit(node: object) -> None:
        if isinstance(node, promql.VectorSelector):
            conditions = found.series.setdefault(node.name, [])
            conditions += [(m.name, str(m.op), m.value) for m in node.matchers.matchers]
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            found.groups.update(node.modifier.labels)
        if isinstance(node, promql.BinaryExpr) and node.modifier is not None:
            found.groups.update(getattr(node.modifier.matching, "labels", None) or [])

    promql.walk(promql.parse(expression), visit)
    return found


def page_of(text: str) -> Page:
    """The series of a metrics page, as Prometheus stores them."""
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = page.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return page


def mistakes(expression: str, page: Page, unknown: Iterable[str] = ()) -> list[str]:
    """What the page has no answer to: series, labels, values. `unknown`: not exported yet."""
    found, ask = [], asked(expression)
    every_label = set(ADDED)
    for name, conditions in ask.series.items():
        if name in OF_PROMETHEUS or name in unknown:
            return []
        if name not in page:
            found.append(f"no series {name}")
            continue
        every_label |= page[name].keys()
        for label, operator, value in conditions:
            found += _condition(name, page[name], label, operator, value)
    found += [f"no label {label} to group by" for label in ask.groups - every_label]
    return found


def _condition(
    name: str, labels: dict[str, set[str]], label: str, operator: str, value: str
) -> list[str]:
    if label in ADDED:
        return []
    if label not in labels:
        return [f"{name} has no label {label}"]
    wanted = value.split("|") if operator.endswith("Re") and value != ".*" else [value]
    if value == ".*":
        return []
    missing = [one for one in wanted if one not in labels[label]]
    return [f"{name} has no {label}={one!r}" for one in missing]


def filled(expression: str) -> str:
    """The expression with Grafana's variables replaced by what they stand for."""
    text = expression.replace("$__rate_interval", "1m").replace("$pool", ".*")
    assert not re.search(r"\$\w", text), text
    return text
