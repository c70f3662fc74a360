"""What `top` shows, as text in 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from policy_server.core.request import Priority
from policy_server.telemetry.status import status_document
from policy_server.telemetry.views import NodeView, PoolView, ServerView, TenantView
from policy_server.top.source import Snapshot
from policy_server.top.view import view
from policy_server.top.words import per_second, seconds, sparkline

COUNTS = {
    "outcomes": {"P0 admitted": 7, "P2 shed": 30},
    "sheds": {"P2 predicted_wait": 30},
    "returns": {"yes": 9, "no": 1, "capped": 2},
}
RATES = {"outcomes": {"P0 admitted": 0.7}, "sheds": {"P2 predicted_wait": 12.4}}


def shown(pool: PoolView, problem: str = "", counts: Any = None, **server: Any) -> str:
    facts = ServerView(version="1.2.3", uptime_s=300.0, pools=(pool,), **server)
    status = status_document(facts, {"chat": counts or {}})
    past = {"chat": {"waiting": [0, 1, 2, None, 8]}}
    out = io.StringIO()
    Console(file=out, width=80).print(view(Snapshot(status, past), problem, printed=True))
    text = out.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    return text


def busy(**facts: Any) -> PoolView:
    waiting = {Priority.P2: 28}
    return PoolView("chat", 4.0, 3, 3, waiting=waiting, limit_max=100.0, rates=RATES, **facts)


def test_under_overload_it_says_who_waits_who_is_shed_and_why() -> None:
    acme = TenantView({Priority.P1: 12, Priority.P2: 8}, inflight=2)
    text = shown(busy(tenants={"acme": acme}), counts=COUNTS)
    assert "chat  shedding 12/s" in text
    assert "in use / limit       3 / 4" in text
    assert "shed since start: P2 predicted wait 30" in text
    assert "Retry-After kept: 90 % (9 let in, 3 shed again)" in text
    assert "tenants waiting: acme 20 (2 in use)" in text
    (row,) = [line.split() for line in text.splitlines() if line.lstrip().startswith("P2")]
    assert row == ["P2", "28", "–", "0/s", "12/s"]


def test_what_has_not_happened_is_said_not_left_blank() -> None:
    text = shown(
        PoolView("chat", 4.0, 0, 0), journal={"kind": "memory", "healthy": True, "error": None}
    )
    assert "no request has come yet" in text
    assert "nobody has come back yet" in text
    assert "tenants waiting: none" in text
    assert "limit: fixed" in text
    assert "Envoys: none seen yet" in text
    assert "Journal: kind memory, healthy yes\n" in text
    assert "Jobs" not in text


def test_a_pool_without_a_ready_backend_says_so_before_anything_else() -> None:
    assert "chat  no backend is ready" in shown(busy(backends_ready=0), counts=COUNTS)
    assert "no backend" not in shown(busy(backends_ready=1), counts=COUNTS)


def test_trouble_stands_first() -> None:
    text = shown(busy(), "it is gone", warnings=("the disk is full",), not_ready="draining")
    said = ["not ready: draining", "it is gone", "! the disk is full", "shedding"]
    assert sorted(said, key=text.index) == said


def on_screen(width: int, height: int, *pools: PoolView, **server: Any) -> list[str]:
    """The lines of a terminal of that size, as `top` fills it."""
    facts = ServerView(version="1.2.3", uptime_s=300.0, pools=pools, **server)
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    content = view(Snapshot(status_document(facts, {})))
    with Live(content, console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
    (*_, drawn) = out.getvalue().split("\x1b[H")
    lines = [line.rstrip() for line in drawn.split("\x1b[?")[0].split("\n")]
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    return lines


def a_pool(name: str, shed: float = 0.0, waiting: int = 0, ready: int | None = None) -> PoolView:
    rates = {"sheds": {"P1 deadline": shed}} if shed else {}
    line = {Priority.P1: waiting}
    return PoolView(name, 4.0, 3, 3, waiting=line, rates=rates, backends_ready=ready)


SERVER: dict[str, Any] = {
    "nodes": (NodeView("gateway-1", 3),),
    "jobs": {"queued": 1, "dispatched": 4},
    "journal": {"kind": "sqlite", "healthy": True, "size_bytes": 33_333, "unwritten": 2},
}


@pytest.mark.parametrize("size", [(80, 24), (60, 12), (100, 60), (40, 8)])
def test_the_worst_pool_stands_first_and_no_other_is_cut_in_silence(size: tuple[int, int]) -> None:
    lines = on_screen(*size, a_pool("calm", waiting=1), a_pool("hot", shed=9.0), **SERVER)
    titles = [line for line in lines if line.startswith(("calm", "hot"))]
    assert [title.split("  ")[:2] for title in titles] == [
        ["hot", "shedding 9/s"],
        ["calm", "queueing, nothing is shed"],
    ]


def test_two_pools_and_the_server_fit_80_by_24() -> None:
    lines = on_screen(80, 24, a_pool("calm"), a_pool("hot", shed=9.0), **SERVER)
    assert "  queue in the engine  –" in lines
    for start in ("hot", "  P2", "  tenants waiting", "calm", "Envoys", "Jobs", "Journal"):
        assert any(line.startswith(start) for line in lines), start
    assert lines[-1] == "… more in a larger window; --once prints all"
    assert not any("…" in line for line in on_screen(80, 60, a_pool("calm"), a_pool("hot")))


def test_what_a_small_screen_leaves_out_it_counts_and_names() -> None:
    pools = [a_pool(f"pool-{n:02}", shed=n / 10) for n in range(30)]
    lines = on_screen(80, 24, *pools, warnings=("the disk is full",), **SERVER)
    shown = [line.split()[0] for line in lines if line.startswith("pool-")]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == "pool-29"
    missing = 30 - len(shown)
    assert f"{missing} pools" in lines[-1]
    assert lines[-1].startswith("… ")
    assert "! the disk is full" in lines


def test_a_pool_without_a_backend_is_worse_than_one_that_sheds() -> None:
    sheds, waits, empty = a_pool("a", 3.0), a_pool("b", waiting=9), a_pool("c", ready=0)
    lines = on_screen(80, 24, a_pool("d"), waits, sheds, empty)
    assert [line[0] for line in lines if line[:3] in ("a  ", "b  ", "c  ", "d  ")] == list("cabd")


def test_a_server_without_pools_has_something_to_say() -> None:
    assert on_screen(80, 24)[0].startswith("policy-server 1.2.3")


def test_a_name_from_outside_cannot_steer_the_terminal() -> None:
    evil = {"\x1b[2J[bold]x\x9b": TenantView({Priority.P1: 5}, 0)}
    text = shown(busy(tenants=evil), nodes=(NodeView("\x1b]0;t\x07", 1),))
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "?[2J[bold]x? 5" in text


def test_a_sparkline_keeps_peaks_and_gaps() -> None:
    assert sparkline([0, 7, 0, 0, None, None, 3.5, 3.5], 4) == "█▁ ▅"
    assert sparkline([1, 2], 40) == "▅█"
    assert sparkline([], 40) == ""
    assert sparkline([0, 0], 2) == "▁▁"


def test_numbers_read_as_a_person_says_them() -> None:
    assert [seconds(s) for s in (None, 0, 0.0123, 61, 600, 9000, 3e5)] == [
        *("–", "0 s", "12.3 ms", "61 s", "10 min", "2 h", "3 days")
    ]
    assert [per_second(r) for r in (None, 0, 0.25, 1234.4)] == ["–", "0/s", "0.2/s", "1,234/s"]
