"""What /statusz says, and what it warns of."""

from __future__ import annotations

import json

from policy_server.core.limit.base import Reason, WindowSample
from policy_server.core.request import Priority
from policy_server.telemetry.status import status_document, warnings_of
from policy_server.telemetry.views import (
    NO_SCRAPE_YET,
    ChangeView,
    NodeView,
    PoolView,
    ScrapeView,
    ServerView,
)


def pool(**changes: object) -> PoolView:
    facts: dict[str, object] = {
        "name": "chat",
        "limit": 40.0,
        "inflight_seats": 38,
        "inflight_requests": 30,
    }
    return PoolView(**(facts | changes))  # type: ignore[arg-type]


def server(*pools: PoolView, **changes: object) -> ServerView:
    facts: dict[str, object] = {"version": "1.2.3", "uptime_s": 61.23, "pools": pools}
    return ServerView(**(facts | changes))  # type: ignore[arg-type]


def test_a_full_view_is_json_a_person_can_read() -> None:
    view = pool(
        waiting={Priority.P1: 3},
        waiting_by_tenant={"acme": 2},
        predicted_wait_s={Priority.P0: 0.0, Priority.P1: 1.23456},
        changes=(ChangeView(38.0, 40.0, Reason.GROW, age_s=2.04),),
        last_window=WindowSample(1.0, 2.0, 9, 38, 40, True),
        rates={"sheds": {"P2 deadline": 0.4}},
    )
    counts = {"sheds": {"P2 deadline": 4}, "returns": {"yes": 2}}
    totals = {"chat": counts, "": {"outcomes": {"passed": 9}}}
    document = json.loads(json.dumps(status_document(server(view), totals)))
    (shown,) = document["pools"]
    assert document["uptime_s"] == 61.2
    assert document["ready"] is True
    assert document["passed"] == 9
    assert shown["inflight"] == {"seats": 38, "requests": 30}
    assert shown["waiting"] == {"P0": 0, "P1": 3, "P2": 0}
    assert shown["predicted_wait_s"] == {"P0": 0.0, "P1": 1.23, "P2": None}
    assert shown["changes"] == [{"previous": 38.0, "limit": 40.0, "reason": "grow", "age_s": 2.0}]
    assert shown["sheds"] == {"P2 deadline": 4}
    assert shown["returns"] == {"yes": 2}
    assert shown["rates"] == {"sheds": {"P2 deadline": 0.4}}
    assert shown["last_window"]["events"] == 9


def test_what_engines_say_and_ask_is_shown_and_a_failing_page_is_warned_of() -> None:
    view = pool(
        asked_seats=4.26,
        scrapes=(
            ScrapeView("http://a/metrics", "used", 0.52),
            ScrapeView("http://b/metrics", "timeout", 2.0),
            ScrapeView("http://c/metrics", NO_SCRAPE_YET),
        ),
    )
    document = json.loads(json.dumps(status_document(server(view), {})))
    (shown,) = document["pools"]
    assert shown["asked"] == {"seats": 4.3, "rps": None}
    assert shown["load_reports"][0] == {
        "source": "http://a/metrics",
        "outcome": "used",
        "age_s": 0.5,
    }
    (warning,) = document["warnings"]
    assert "http://b/metrics (timeout)" in warning


def test_a_calm_server_warns_of_nothing() -> None:
    calm = server(
        pool(leases=3, oldest_lease_age_s=300.0),
        nodes=(NodeView("envoy-1", leases=3, log_age_s=1.0),),
    )
    assert warnings_of(calm) == []


def test_leases_without_any_access_log_are_a_wiring_mistake() -> None:
    lost = server(pool(leases=3, oldest_lease_age_s=20.0), nodes=(NodeView("envoy-1", 3),))
    (warning,) = warnings_of(lost)
    assert "no access log from Envoy seen though 3 leases are open" in warning
    assert "check the access log config" in warning


def test_a_young_lease_may_still_be_logged() -> None:
    assert warnings_of(server(pool(leases=3, oldest_lease_age_s=14.0))) == []


def test_an_envoy_that_fell_silent_with_leases_is_named() -> None:
    nodes = (
        NodeView("envoy-1", leases=2, log_age_s=75.0),
        NodeView("envoy-2", leases=0, log_age_s=900.0),
    )
    (warning,) = warnings_of(server(pool(leases=2), nodes=nodes))
    assert "envoy-1" in warning


def test_a_late_loop_and_a_limit_at_its_maximum_are_told() -> None:
    pressed = server(
        pool(limit=40.0, limit_max=40.0, waiting={Priority.P2: 5}),
        lagging=True,
        loop_lag_s=0.08,
        warnings=("journal: fsync is interval",),
    )
    own, lag, limit = warnings_of(pressed)
    assert own == "journal: fsync is interval"
    assert "80 ms late" in lag
    assert "raise limit.max" in limit
