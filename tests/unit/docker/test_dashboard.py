"""The dashboard and the alert rules: complete, consistent, readable."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from policy_server.telemetry import names
from policy_server.telemetry.names import MetricId
from tests.support.container import DOCKER
from tests.support.observability import NOT_EXPORTED_YET, alerts, dashboard, expressions, panels
from tests.support.promql import asked, mistakes, page_of

METRICS = {value.name for value in vars(names).values() if isinstance(value, MetricId)}
SUFFIXES = re.compile(r"_(bucket|sum|count)$")
SELF_EXPLAINED = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def title(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def test_it_is_one_that_links_and_alerts_can_point_to() -> None:
    found = dashboard()
    assert found["uid"] == "policy-server"
    assert found["schemaVersion"] >= 41
    assert "id" not in found
    datasource, pool = found["templating"]["list"]
    assert (datasource["name"], datasource["type"]) == ("datasource", "datasource")
    assert pool["query"]["query"] == "label_values(policy_limit, pool)"
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


@pytest.mark.parametrize("panel", panels(), ids=title)
def test_a_panel_says_what_it_shows_and_asks_the_chosen_source(panel: dict[str, Any]) -> None:
    assert len(panel["description"]) > 10
    assert panel["fieldConfig"]["defaults"]["unit"]
    for part in (panel, *panel["targets"]):
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_fill_the_grid_and_none_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    height = 1 + max(y for _, y in taken)
    assert len(taken) == 24 * height


def test_every_metric_is_on_it() -> None:
    shown = {
        SUFFIXES.sub("", series) for one in expressions().values() for series in asked(one).series
    }
    assert METRICS - shown == set()


@pytest.mark.parametrize("where", expressions())
def test_no_expression_asks_for_a_metric_that_was_never_promised(where: str) -> None:
    series = asked(expressions()[where]).series.keys()
    known = METRICS | {SUFFIXES.sub("", name) for name in NOT_EXPORTED_YET} | SELF_EXPLAINED
    known |= {"up", "process_start_time_seconds"}
    assert {SUFFIXES.sub("", name) for name in series} <= known


def test_a_query_that_has_no_answer_is_found() -> None:
    page = page_of('# TYPE a gauge\na{pool="x"} 1\n')
    assert mistakes('sum by (pool) (a{pool="x"})', page) == []
    assert mistakes("b", page) == ["no series b"]
    assert mistakes('a{class="P0"}', page) == ["a has no label class"]
    assert mistakes('a{pool=~"x|y"}', page) == ["a has no pool='y'"]
    assert mistakes("sum by (class) (a)", page) == ["no label class to group by"]
    with pytest.raises(ValueError, match="parenthesis"):
        mistakes("sum(a", page)


def test_every_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        assert rule["labels"].keys() == {"severity"}, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert re.fullmatch(r"\d+m", rule["for"])


def test_an_alert_names_only_labels_that_its_expression_leaves() -> None:
    for rule in alerts():
        text = " ".join(rule["annotations"].values())
        used = set(re.findall(r"\$labels\.(\w+)", text))
        assert used <= asked(rule["expr"]).groups, rule["alert"]


def test_every_alert_has_a_unit_test_that_sees_it_fire() -> None:
    text = (DOCKER / "prometheus/alerts.test.yaml").read_text("utf-8")
    tests = yaml.safe_load(text)["tests"]
    fired = set()
    for test in tests:
        for one in test.get("alert_rule_test", []):
            fired |= {one["alertname"]} if one["exp_alerts"] else set()
        for one in test.get("promql_expr_test", []):
            for sample in one["exp_samples"]:
                fired |= set(re.findall(r'alertname="(\w+)"', one["expr"] + sample["labels"]))
    assert {rule["alert"] for rule in alerts()} <= fired
