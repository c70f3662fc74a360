"""`make bench`: the product's figures on this machine, as ratios within one run.

    make bench                                                  everything
    make bench ARGS='overload --slots 40 --sigma 0 --seconds 60'
    make bench ARGS='held ceiling decision --json bench.json'

Exit code 0 when every bar of ours holds, else 1. Needs a quiet machine with two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import uvloop
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
    pulse,
    real_models,
    returns,
    room,
    startup,
    tenants,
    wirings,
)
from tests.bench.contenders import CONTENDERS
from tests.bench.result import Part, print_part

WIDTH = 170
Run = Callable[[Path], Awaitable[Part]]


def say(line: str) -> None:
    """Progress, beside the tables."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run what was asked for."""
    options = _arguments(sys.argv[1:])
    console = Console(width=None if sys.stdout.isatty() else WIDTH, file=sys.stdout)
    parts = []
    for name in options.parts or list(RUNS):
        say(f"--- {name}")
        began = time.monotonic()
        part = _run(RUNS[name](options), options.dir)
        part.data["took_s"] = round(time.monotonic() - began, 1)
        print_part(console, part)
        parts.append(part)
        if options.json:
            options.json.write_text(json.dumps([p.as_json() for p in parts], indent=1))
    missed = [bar.name for part in parts for bar in part.bars if not bar.holds]
    console.print(f"{len(missed)} bars missed" + "".join(f"\n  {name}" for name in missed))
    return 1 if missed else 0


def _run(run: Run, directory: Path | None) -> Part:
    """One bench with a directory of its own; `--dir` keeps the logs that Envoy's helper prints."""
    with contextlib.ExitStack() as cleanup:
        if directory is None:
            made = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
            directory = Path(cleanup.enter_context(made))
        directory.mkdir(parents=True, exist_ok=True)
        cleanup.enter_context(contextlib.redirect_stdout(cleanup.enter_context(_nowhere())))
        raise_file_limit()

        async def whole() -> Part:
            return await run(directory)

        return uvloop.run(whole())


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _overload(options: argparse.Namespace) -> Run:
    plan = overload.Overload(
        **_given(
            slots=options.slots,
            sigmas=options.sigma,
            contenders=options.contender,
            seconds=options.seconds,
            seed=options.seed,
        )
    )
    plan = replace(plan, warmup_s=min(plan.warmup_s, plan.seconds / 3))
    return lambda directory: overload.run(plan, directory, say)


def _wirings(options: argparse.Namespace) -> Run:
    plan = replace(
        wirings.DEFAULT,
        **_given(
            slots=options.slots, sigmas=options.sigma, seconds=options.seconds, seed=options.seed
        ),
    )
    plan = replace(plan, warmup_s=min(plan.warmup_s, plan.seconds / 3))
    names = options.way or tuple(wirings.ENTRANCES)
    return lambda directory: wirings.run(plan, names, directory, say)


def _adapt(options: argparse.Namespace) -> Run:
    plan = adapt.Adapt(**_given(kinds=options.kind, seed=options.seed))
    if options.slots:
        plan = replace(plan, slots=options.slots[0])
    if options.sigma:
        plan = replace(plan, sigma=options.sigma[0])
    return lambda directory: adapt.run(plan, directory, say)


def _held(options: argparse.Namespace) -> Run:
    plan = held.Held(**_given(count=options.count, kinds=options.kind))
    return lambda directory: held.run(plan, directory, say)


def _ceiling(options: argparse.Namespace) -> Run:
    plan = ceiling.Ceiling(**_given(seconds=options.seconds))
    return lambda directory: ceiling.run(plan, directory, say)


def _decision(options: argparse.Namespace) -> Run:
    return lambda directory: decision.run(decision.Decision(), directory, say)


def _journal(options: argparse.Namespace) -> Run:
    plan = journal.JournalCost(**_given(seconds=options.seconds))
    return lambda directory: journal.run(plan, directory, say)


def _jobs(options: argparse.Namespace) -> Run:
    plan = jobs.Jobs(**_given(seconds=options.seconds))
    return lambda directory: jobs.run(plan, directory, say)


def _room(_options: argparse.Namespace) -> Run:
    return lambda directory: room.run(room.Waiting(), directory, say)


def _observer(options: argparse.Namespace) -> Run:
    plan = observer.Watched(**_given(seconds=options.seconds))
    return lambda directory: observer.run(plan, directory, say)


def _profile(options: argparse.Namespace) -> Run:
    plan = profile.Profile(**_given(seconds=options.seconds))
    return lambda directory: profile.run(plan, directory, say)


def _startup(_options: argparse.Namespace) -> Run:
    return lambda directory: startup.run(startup.Startup(), directory, say)


def _embeddings(options: argparse.Namespace) -> Run:
    return _real_model(real_models.RealModels(), options)


def _chat(options: argparse.Namespace) -> Run:
    return _real_model(real_models.CHATTING, options)


def _real_model(plan: real_models.RealModels, options: argparse.Namespace) -> Run:
    plan = replace(plan, **_given(seconds=options.seconds))
    plan = replace(plan, warmup_s=min(plan.warmup_s, plan.seconds / 3))
    return lambda directory: real_models.run(plan, directory, say)


def _tenants(options: argparse.Namespace) -> Run:
    plan = tenants.Tenants(**_given(seconds=options.seconds, seed=options.seed))
    return lambda directory: tenants.run(plan, directory, say)


def _returns(options: argparse.Namespace) -> Run:
    plan = returns.Returns(**_given(seconds=options.seconds, told=options.told, seed=options.seed))
    return lambda directory: returns.burst(plan, directory, say)


def _sustained(options: argparse.Namespace) -> Run:
    plan = returns.Returns(**_given(seconds=options.seconds or 600.0, seed=options.seed))
    return lambda directory: returns.sustained(plan, directory, say)


def _pulse(options: argparse.Namespace) -> Run:
    plan = pulse.Pulse(**_given(kinds=options.kind, seconds=options.seconds, seed=options.seed))
    return lambda directory: pulse.run(plan, directory, say)


RUNS: dict[str, Callable[[argparse.Namespace], Run]] = {
    "overload": _overload,
    "wirings": _wirings,
    "adapt": _adapt,
    "held": _held,
    "ceiling": _ceiling,
    "decision": _decision,
    "journal": _journal,
    "jobs": _jobs,
    "room": _room,
    "observer": _observer,
    "startup": _startup,
    "profile": _profile,
    "embeddings": _embeddings,
    "chat": _chat,
    "tenants": _tenants,
    "returns": _returns,
    "sustained": _sustained,
    "pulse": _pulse,
}


def _given(**options: Any) -> dict[str, Any]:
    """The options that were typed; the rest keeps its default."""
    return {name: value for name, value in options.items() if value is not None}


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=_Raw
    )
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(RUNS)}; default all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--dir", type=Path, help="keep logs and configurations there")
    group = parser.add_argument_group("overload, wirings, adapt")
    group.add_argument("--slots", type=_several(int), help="as in 40,200,6")
    group.add_argument("--sigma", type=_several(float), help="as in 0,.9")
    group.add_argument("--contender", type=_several(str), help=", ".join(CONTENDERS))
    group.add_argument("--way", type=_several(str), help=", ".join(wirings.ENTRANCES))
    group.add_argument("--seed", type=int)
    group = parser.add_argument_group("others")
    group.add_argument("--seconds", type=float, help="of load (all but held, decision)")
    group.add_argument("--told", type=_several(str), help=f"returns: {', '.join(returns.ALL_TOLD)}")
    group.add_argument("--count", type=int, help="held at once (held)")
    group.add_argument(
        "--kind",
        type=_several(str),
        help=f"held: {', '.join(held.KINDS)}; adapt: streamed, whole; "
        f"pulse: {', '.join(pulse.KINDS)}",
    )
    options = parser.parse_args(argv)
    for name in options.parts:
        if name not in RUNS:
            parser.error(f"no bench {name!r}; there are {', '.join(RUNS)}")
    for name in options.contender or ():
        if name not in CONTENDERS and not re.fullmatch(r"fixed[1-9][0-9]*", name):
            parser.error(f"no contender {name!r}; there are {', '.join(CONTENDERS)}, and fixedN")
    for name in options.way or ():
        if name not in wirings.ENTRANCES:
            parser.error(f"no way {name!r}; there are {', '.join(wirings.ENTRANCES)}")
    return options


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the examples of the description as they are."""


def _several(kind: Callable[[str], object]) -> Callable[[str], tuple[object, ...]]:
    def read(text: str) -> tuple[object, ...]:
        return tuple(kind(part) for part in text.split(",") if part)

    return read


if __name__ == "__main__":
    sys.exit(main())
