"""Metrics by tenant: the tenants of the configuration by name, whatever clients call themselves."""

from __future__ import annotations

from dataclasses import replace

from policy_server.core.events import Admitted, Cancelled, Shed
from policy_server.core.outcome import ShedReason
from policy_server.core.request import Priority, Request
from policy_server.telemetry.metrics import Metrics
from policy_server.telemetry.tenants import MAX_NAMED, OTHER
from policy_server.telemetry.views import PoolView

REQUEST = Request("u", "chat", Priority.P1, arrived=0.0, deadline=15.0)
VIEW = PoolView("chat", 4.0, 0, 0, held_by_tenant={"acme": 3, "x1": 2, "x2": 5, "": 1})


def metrics(*named: str) -> Metrics:
    made = Metrics("1", ["chat"], lambda: [VIEW])
    made.tenants.use(named)
    return made


def ask(made: Metrics, tenant: str) -> None:
    """One request of each outcome."""
    one = replace(REQUEST, tenant=tenant)
    for event in (
        Admitted(one, 0.0, False, False),
        Admitted(one, 1.0, True, False),
        Shed(one, ShedReason.ROOM_FULL, 1.0, 0.0, False),
        Cancelled(one, 1.0),
    ):
        made.on_event(event, 0.0)


def counted(made: Metrics, tenant: str, outcome: str) -> float | None:
    labels = {"pool": "chat", "tenant": tenant, "outcome": outcome}
    return made.registry.get_sample_value("policy_tenant_requests_total", labels)


def test_the_named_count_apart_and_the_rest_together() -> None:
    made = metrics("acme")
    for tenant in ("acme", "acme", "x1", "x2", ""):
        ask(made, tenant)
    for outcome in ("admitted", "queued_admitted", "shed", "cancelled"):
        assert counted(made, "acme", outcome) == 2
        assert counted(made, OTHER, outcome) == 3


def test_no_name_of_a_client_becomes_a_label() -> None:
    made = metrics("acme")
    for number in range(1000):
        ask(made, f"invented-{number}")
    text = made.render().decode()
    assert "invented" not in text
    assert text.count("policy_tenant_requests_total{") == 4


def test_who_waits_is_shown_with_the_same_labels() -> None:
    text = metrics("acme", "idle").render().decode()
    assert 'policy_tenant_waiting{pool="chat",tenant="acme"} 3.0' in text
    assert 'policy_tenant_waiting{pool="chat",tenant="idle"} 0.0' in text
    assert 'policy_tenant_waiting{pool="chat",tenant="other"} 8.0' in text
    assert "x1" not in text


def test_a_long_list_is_cut_and_a_reload_takes_up_new_names() -> None:
    made = metrics(*(f"t{n}" for n in range(1000)))
    assert len(made.tenants.labels()) == MAX_NAMED + 1
    assert made.tenants.label("t99") == "t99"
    assert made.tenants.label("t100") == OTHER
    made.tenants.use(["t100"])
    assert made.tenants.label("t100") == "t100"
