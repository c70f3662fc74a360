"""The benches run end to end in miniature; figures worth reading take a quiet machine."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from policy_server.load.runner import raise_file_limit
from tests.bench import (
    adapt,
    ceiling,
    decision,
    held,
    jobs,
    journal,
    observer,
    overload,
    profile,
    real_models,
    startup,
    wirings,
)
from tests.bench.__main__ import RUNS
from tests.bench.client import Replies, Reply
from tests.bench.result import Bar, Part, print_part


@pytest.fixture(autouse=True)
def _many_sockets() -> None:
    raise_file_limit()


def quiet(_line: str) -> None:
    """Progress is for people."""


def seen(part: Part) -> str:
    """What a user would read; it must be JSON as well."""
    json.dumps(part.as_json())
    console = Console(width=170, file=io.StringIO())
    print_part(console, part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_overload_compares_with_what_the_backend_does_alone(tmp_path: Path) -> None:
    plan = overload.Overload(
        slots=(6,), sigmas=(0.9,), contenders=("vegas", "envoy_gradient"), seconds=1.5,
        warmup_s=0.5, patience_s=0.5, alone_s=1.0, tokens=10,
    )  # fmt: skip
    part = await overload.run(plan, tmp_path, quiet)
    text = seen(part)
    assert "vegas" in text
    assert "envoy_gradient" in text
    goodputs = [row[3] for row in part.rows]
    assert None not in goodputs
    assert 0 not in goodputs
    assert len(part.bars) == 7  # of ours only


async def test_other_ways_in_are_compared(tmp_path: Path) -> None:
    plan = overload.Overload(
        slots=(6,), sigmas=(0.9,), seconds=1.5, warmup_s=0.5, patience_s=0.5, alone_s=1.0, tokens=10
    )
    part = await wirings.run(plan, ("stream", "authz-scrape"), tmp_path, quiet)
    assert "authz-scrape" in seen(part)
    goodputs = [row[3] for row in part.rows]
    assert None not in goodputs
    assert 0 not in goodputs


async def test_the_limit_follows_an_engine_that_shrinks(tmp_path: Path) -> None:
    plan = adapt.Adapt(
        slots=6, sweep=(1.0,), sweep_s=1.0, cold_s=1.0, halved_after_s=0.5, back_after_s=0.5,
        counted_s=0.5, alone_s=1.0, kinds=("streamed",),
    )  # fmt: skip
    part = await adapt.run(plan, tmp_path, quiet)
    assert "half of the slots" in seen(part)
    assert "simulated, all of them again" in seen(part)
    assert len(part.bars) == 3 + 2 * 3  # and two each against the simulator


@pytest.mark.parametrize("kind", ["release", "displaced", "crash"])
async def test_the_held_are_all_answered(tmp_path: Path, kind: str) -> None:
    part = await held.run(held.Held(count=40, crash=40, kinds=(kind,)), tmp_path, quiet)
    missed = [bar for bar in part.bars if not bar.holds and "KiB" not in bar.name]
    assert not missed
    assert kind in seen(part)


async def test_the_ceiling_is_found_and_trebled(tmp_path: Path) -> None:
    part = await ceiling.run(ceiling.Ceiling(0.5, ramp=(4,), step_s=0.3), tmp_path, quiet)
    assert "as shipped" in seen(part)


async def test_the_journal_and_the_jobs_are_priced(tmp_path: Path) -> None:
    part = await journal.run(journal.JournalCost(1, 0.3, 4), tmp_path, quiet)
    assert [row[0] for row in part.rows] == ["fast", "fast", "waiting", "waiting"]
    plan = jobs.Jobs(0.3, 1, clients=4, latency_s=1.0, parts=1, queued=60, held=20)
    part = await jobs.run(plan, tmp_path, quiet)
    counted = [bar for bar in part.bars if bar.wanted.startswith("=")]
    assert [bar.holds for bar in counted] == [True] * 3


async def test_a_decision_is_priced(tmp_path: Path) -> None:
    plan = decision.Decision(rounds=1, seconds=0.3, clients=4, rooms=(5, 20), cycles=100)
    part = await decision.run(plan, tmp_path, quiet)
    assert "bare grpc.aio server" in seen(part)


@pytest.mark.parametrize("plan", [real_models.RealModels(), real_models.CHATTING])
async def test_a_real_model_is_driven_past_its_capacity(
    tmp_path: Path, plan: real_models.RealModels
) -> None:
    plan = replace(
        plan,
        fixed=(4,),
        seconds=1.5,
        warmup_s=0.5,
        rounds=1,
        patience_s=1.0,
        alone_s=1.5,
    )
    part = await real_models.run(plan, tmp_path, quiet)
    assert "fixed 4" in seen(part)


async def test_streams_are_watched(tmp_path: Path) -> None:
    plan = observer.Watched(streams=10, tokens=20, seconds=1.0, warmup_s=1.0)
    part = await observer.run(plan, tmp_path, quiet)
    assert "a sample" in seen(part)
    assert all(row[1] for row in part.rows)


async def test_starts_and_kills_are_timed(tmp_path: Path) -> None:
    plan = startup.Startup(starts=1, kills=1, zeros=1, settle_s=0.5)
    part = await startup.run(plan, tmp_path, quiet)
    assert "kill -9" in seen(part)
    assert part.rows[2][3] == 1
    assert part.rows[-1][0] == "first replica ready → first answer"
    assert part.rows[-1][3] == 1


async def test_the_time_is_found(tmp_path: Path) -> None:
    plan = profile.Profile(clients=4, seconds=2.0, warmup_s=0.3)
    part = await profile.run(plan, tmp_path, quiet)
    assert profile.C_CODE in seen(part)


def test_every_bench_has_a_name() -> None:
    assert list(RUNS) == [
        "overload", "wirings", "adapt", "held", "ceiling", "decision", "journal", "jobs", "room",
        "observer", "startup", "profile", "embeddings", "chat", "tenants", "returns",
        "sustained", "pulse",
    ]  # fmt: skip


def test_a_figure_that_was_not_measured_misses_its_bar() -> None:
    assert not Bar.at_least("goodput", None, 0.9).holds
    assert not Bar.at_most("wait", None, 1.0).holds


def test_a_refusal_without_a_retry_after_is_malformed() -> None:
    replies = Replies()
    replies.add(Reply(429, {"x-policy-reason": "deadline"}))
    replies.add(Reply(200, {}))
    assert replies.malformed == 1
    assert replies.statuses == {429: 1, 200: 1}
