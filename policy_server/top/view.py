"""Lays a snapshot out for a terminal: the worst pool first, 80 columns suffice.

What does not fit the screen is cut to the worst pool and a line for each further one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from policy_server.top.screen import Block, Fitted
from policy_server.top.source import Json, Snapshot
from policy_server.top.words import number, per_second, plain, seconds, sparkline

CHART_WIDTH = 40
ROWS = 5
GOOD, WARN, BAD, SOFT = "bold green", "bold yellow", "bold red", "dim"


def view(snapshot: Snapshot, problem: str = "", *, printed: bool = False) -> RenderableType:
    """What fits the screen, or all of it when it is `printed`. `problem`: why this is old, "" while
    it is live."""
    status = snapshot.status
    head, server = list(_head(status, problem)), list(_server(status))
    pools = sorted(status["pools"], key=_trouble, reverse=True)
    full = [list(_pool(pool, snapshot.history.get(pool["name"], {}))) for pool in pools]
    others = [
        Block("pool", _in_a_line(pool), 2, spaced=at == 0) for at, pool in enumerate(pools[1:])
    ]
    return Fitted(
        [*head, *(block for pool in full for block in pool), *server],
        [*head, *(full[0] if full else []), *others, *server],
        printed,
    )


def _head(status: Json, problem: str) -> Iterator[Block]:
    ready = (
        Text("ready", GOOD) if status["ready"] else Text(f"not ready: {status['not_ready']}", BAD)
    )
    facts = (
        f"up {seconds(status['uptime_s'])} · loop lag {number(status['loop']['lag_ms'])} ms"
        f" · passed ungoverned {number(status['passed'])}"
    )
    title = [Text(f"policy-server {status['version']}", "bold"), ready, Text(facts, SOFT)]
    yield Block("server", Text("  ").join(title), 0)
    if problem:
        yield Block("problem", Text(problem, BAD), 0)
    for at, warning in enumerate(status["warnings"]):
        yield Block("warning", Text(f"! {plain(warning)}", WARN), 1 if at < 2 else 4)


def _pool(pool: Json, past: Mapping[str, Any]) -> Iterator[Block]:
    title = Text("  ").join([Text(pool["name"], "bold underline"), _verdict(pool)])
    yield Block("pool", title, 0, spaced=True)
    yield Block("gauges", _gauges(pool, past), 1)
    yield Block("classes", _classes(pool), 3, spaced=True)
    for name, line in _lists(pool):
        yield Block(name, line, 5)


def _trouble(pool: Json) -> tuple[int, float, int]:
    """How bad it is: no backend, then who sheds most, then where most wait."""
    shed, waiting = _rate(pool, "sheds", "", "") or 0.0, sum(pool["waiting"].values())
    empty = pool.get("backends", {}).get("ready") == 0
    return (2 if empty else 1 if shed else 0, shed, waiting)


def _in_a_line(pool: Json) -> Text:
    facts = (
        f"{number(pool['inflight']['seats'])} / {number(pool['limit'])} in use, "
        f"{number(sum(pool['waiting'].values()))} waiting"
    )
    line = Text("  ").join([Text(pool["name"], "bold"), _verdict(pool), Text(facts, SOFT)])
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _verdict(pool: Json) -> Text:
    shed = _rate(pool, "sheds", "", "")
    if pool.get("backends", {}).get("ready") == 0:
        return Text("no backend is ready", BAD)
    if shed:
        return Text(f"shedding {per_second(shed)}", BAD)
    if sum(pool["waiting"].values()):
        return Text("queueing, nothing is shed", WARN)
    if not pool["outcomes"]:
        return Text("no request has come yet")
    return Text("calm, nothing waits", GOOD)


def _gauges(pool: Json, past: Mapping[str, Any]) -> RenderableType:
    signals = pool["signals"]
    rows = (
        (
            "in use / limit",
            f"{number(pool['inflight']['seats'])} / {number(pool['limit'])}",
            "inflight",
        ),
        ("waiting", number(sum(pool["waiting"].values())), "waiting"),
        ("queue in the engine", number(signals["engine_queue"]), "engine_queue"),
        ("admitted", per_second(_rate(pool, "outcomes", "", "admitted")), "admitted_per_s"),
        ("shed", per_second(_rate(pool, "sheds", "", "")), "shed_per_s"),
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value, column in rows:
        line = sparkline(past.get(column, ()), CHART_WIDTH)
        table.add_row(Text(name), Text(value, "bold"), Text(line or " ", SOFT))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _classes(pool: Json) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=SOFT)
    table.add_column("class")
    for name in ("waiting", "would wait", "admitted", "shed"):
        table.add_column(name, justify="right")
    jobs: Mapping[str, int] = pool.get("jobs_waiting", {})
    for name, waiting in pool["waiting"].items():
        more = f" + {number(jobs[name])} jobs" if jobs.get(name) else ""
        table.add_row(
            name,
            number(waiting) + more,
            seconds(pool["predicted_wait_s"][name]),
            per_second(_rate(pool, "outcomes", f"{name} ", "admitted")),
            per_second(_rate(pool, "sheds", f"{name} ", "")),
        )
    return Padding(table, (0, 0, 0, 2), expand=False)


def _lists(pool: Json) -> Iterator[tuple[str, RenderableType]]:
    sheds = [f"{name.replace('_', ' ')} {number(n)}" for name, n in _most(pool["sheds"])]
    tenants = [
        f"{plain(name)} {number(sum(t['waiting'].values()))} ({number(t['inflight'])} in use)"
        for name, t in list(pool["tenants"].items())[:ROWS]
    ]
    for title, entries, nothing in (
        ("shed since start", sheds, "nothing"),
        ("Retry-After kept", _kept(pool["returns"]), "nobody has come back yet"),
        ("tenants waiting", tenants, "none"),
        ("limit", _moves(pool), "not moved yet"),
    ):
        line = Text(f"{title}: ", SOFT)
        line.append(", ".join(entries) or nothing, "not dim")
        yield title, Padding(line, (0, 0, 0, 2), expand=False)


def _kept(returns: Mapping[str, int]) -> list[str]:
    yes, no, capped = (returns.get(name, 0) for name in ("yes", "no", "capped"))
    if not yes + no + capped:
        return []
    share = f"{100 * yes / (yes + no):.0f} % " if yes + no else ""
    return [f"{share}({number(yes)} let in, {number(no + capped)} shed again)"]


def _moves(pool: Json) -> list[str]:
    if pool["limit_max"] is None:
        return ["fixed"]
    return [
        f"{c['reason'].replace('_', ' ')} {number(c['previous'])} → {number(c['limit'])} "
        f"{seconds(c['age_s'])} ago"
        for c in pool["changes"][:2]
    ]


def _server(status: Json) -> Iterator[Block]:
    envoys = [
        f"{plain(node['node']) or '(unnamed)'} {number(node['leases'])} leases, last log "
        + ("never" if node["log_age_s"] is None else f"{seconds(node['log_age_s'])} ago")
        for node in status["nodes"][:ROWS]
    ]
    said = {"Envoys": "; ".join(envoys) or "none seen yet"}
    for title in ("jobs", "journal"):
        facts = (status.get(title) or {}).items()
        said[title.capitalize()] = ", ".join(
            f"{name.replace('_', ' ')} {_said(value)}" for name, value in facts if value is not None
        )
    for title, facts in said.items():
        if facts:
            line = Text(f"{title}: ", SOFT).append(facts, "not dim")
            yield Block(title, line, 4, spaced=title == "Envoys")


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, (int, float)) else plain(str(value))


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:ROWS]


def _rate(pool: Json, kind: str, start: str, end: str) -> float | None:
    """Per second of all names that start and end so; None while it is not known."""
    rates: Mapping[str, float] | None = pool["rates"].get(kind)
    if rates is None:
        return None
    return sum(v for name, v in rates.items() if name.startswith(start) and name.endswith(end))
