"""`policy-server load`: the command; `cli` registers it."""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from policy_server.commands import console, run, usage

if TYPE_CHECKING:
    from policy_server.load.params import LoadParams
    from policy_server.load.results import LoadReport
    from policy_server.load.runner import Progress


def load(  # noqa: PLR0913, PLR0917 - one parameter per option
    url: Annotated[str, typer.Option("--url", help="Gateway or model server.")],
    rate: Annotated[float, typer.Option("--rate", help="Requests per second.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How long to send.")],
    mix: Annotated[str, typer.Option(help="Classes, as in 0:.2,1:.5,2:.3")] = "",
    tenants: Annotated[str, typer.Option(help="Tenants, as in a:.9,b:.1")] = "",
    tokens: Annotated[int, typer.Option(help="Mean answer length.")] = 100,
    sigma: Annotated[float, typer.Option(help="Spread of the lengths (lognormal).")] = 0.0,
    warmup: Annotated[float, typer.Option(help="Seconds left out of the table.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.")] = 1,
    retry: Annotated[bool, typer.Option("--retry", help="Retry like the SDKs.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Streamed answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Send open-loop load; latency counts from the scheduled send."""
    from policy_server.load.params import LoadParams, parse_mix, parse_weights

    with usage():
        params = LoadParams(
            url=url,
            rate=rate,
            seconds=seconds,
            mix=parse_mix(mix) if mix else {},
            tenants=parse_weights(tenants, "--tenants") if tenants else {},
            tokens=tokens,
            sigma=sigma,
            warmup_s=warmup,
            seed=seed,
            retry=retry,
            stream=stream,
        )
    report = run(_perform(params))
    _show(report, as_json)
    if report.broken:
        raise ConnectionError(f"{params.url}: no request got an answer: {report.broken}")


async def _perform(params: LoadParams) -> LoadReport:
    from policy_server.load.reach import check_reachable
    from policy_server.load.runner import run_load

    await check_reachable(params.url)
    return await run_load(params, _progress)


def _show(report: LoadReport, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(report.as_json(), indent=1))
        return
    from policy_server.load.report import render

    console().print(render(report))


def _progress(now: Progress) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{now.elapsed_s:4.0f} s  sent {now.sent}  served {now.served}  "
            f"in flight {now.inflight}  refused {now.refused_attempts} ",
            end="",
            file=sys.stderr,
            flush=True,
        )
