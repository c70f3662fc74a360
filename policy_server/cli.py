"""`policy-server …`: the commands, thin. What they do is imported when they run.

Exit codes: 0 ok, 2 usage or configuration error (one line on stderr), 1 failure.
"""

# ruff: noqa: PLC0415 - a command imports what it needs, so that --help stays fast

from __future__ import annotations

import dataclasses
import os
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policy_server import __version__
from policy_server.commands import console, run, usage
from policy_server.jobs.command import jobs_app
from policy_server.load.command import load
from policy_server.load.warmup_command import warmup
from policy_server.simulate.command import simulate_command
from policy_server.top.command import top

if TYPE_CHECKING:
    from policy_server.core.params import PoolParams

NAME = "policy-server"

app = typer.Typer(
    name=NAME,
    help="Overload control for model APIs behind Envoy.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Wiring(StrEnum):
    """How Envoy asks the policy server."""

    gate = "gate"
    authz = "authz"
    stream = "stream"


class OnOutage(StrEnum):
    """What Envoy does while there is no policy server."""

    closed = "closed"
    open = "open"


class Target(StrEnum):
    """Whose configuration is printed."""

    bootstrap = "bootstrap"
    istio = "istio"
    istio_values = "istio-values"
    envoy_gateway = "envoy-gateway"


class Mode(StrEnum):
    """What SIGTERM means for held requests."""

    gateway = "gateway"
    serve = "serve"


class JournalAction(StrEnum):
    """What to do with the journal."""

    ls = "ls"
    verify = "verify"
    stats = "stats"
    salvage = "salvage"


ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML file; POLICY_…__… variables override it.")
]
DataDir = Annotated[Path, typer.Option("--data-dir", help="Journal, keys, Envoy's bootstrap.")]
AdminPort = Annotated[
    int, typer.Option("--envoy-admin-port", help="Envoy's admin port, loopback only.")
]
WiringOption = Annotated[Wiring, typer.Option("--wiring", help="How Envoy asks the policy server.")]
Outage = Annotated[
    OnOutage, typer.Option("--on-outage", help="Refuse or pass traffic without a policy server.")
]


@app.command()
def gateway(
    upstream: Annotated[
        list[str], typer.Option("--upstream", help="Model server URL; several are one pool.")
    ],
    port: Annotated[int, typer.Option("--port", help="Where clients connect.")] = 10000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "0.0.0.0",  # noqa: S104
    grpc_port: Annotated[
        int | None, typer.Option("--grpc-port", help="9002, or as server.grpc says.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="9003, or as server.http says.")
    ] = None,
    envoy_admin_port: AdminPort = 9901,
    data_dir: DataDir = Path("data"),
    config: ConfigFile = None,
    wiring: WiringOption = Wiring.gate,
    on_outage: Outage = OnOutage.closed,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="PEM, for clients.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM, for clients.")] = None,
    gate_rate: Annotated[
        int, typer.Option("--gate-rate", help="Requests per second that reach the policy server.")
    ] = 2000,
) -> None:
    """Run Envoy and the policy server in front of a model server. Prints `ready`."""
    from policy_server.gateway.plan import Flags, make_plan
    from policy_server.gateway.supervisor import run_gateway

    flags = Flags(
        upstreams=upstream,
        host=host,
        port=port,
        grpc_port=grpc_port,
        http_port=http_port,
        admin_port=envoy_admin_port,
        data_dir=data_dir,
        config=config,
        wiring=wiring.value,
        on_outage=on_outage.value,
        tls_cert=tls_cert,
        tls_key=tls_key,
        gate_rate_per_s=gate_rate,
    )
    raise typer.Exit(run_gateway(make_plan(flags, os.environ)))


@app.command()
def serve(
    config: ConfigFile = None,
    data_dir: DataDir = Path("data"),
    wiring: Annotated[
        Wiring, typer.Option("--wiring", help="Of Envoys that do not say theirs themselves.")
    ] = Wiring.gate,
    standby: Annotated[bool, typer.Option("--standby", hidden=True)] = False,
    mode: Annotated[Mode, typer.Option("--mode", hidden=True)] = Mode.serve,
    accepted: Annotated[Path | None, typer.Option("--accepted", hidden=True)] = None,
    built: Annotated[Path | None, typer.Option("--built", hidden=True)] = None,
) -> None:
    """Run the policy server alone, for an Envoy that someone else runs. Prints `ready`."""
    from policy_server.app import Parent, Reload, run_server
    from policy_server.config import load_config
    from policy_server.config_check import check_files
    from policy_server.gateway import accepted as last_accepted
    from policy_server.gateway import standby as handover

    parent = Parent(handover.say_ready)
    if standby:
        supervisor = handover.Supervisor()
        if not supervisor.wait_for_go():
            return
        supervisor.follow()
        parent = Parent(handover.say_ready, supervisor.on_node)
    settings = load_config(accepted or config, os.environ)
    check_files(settings, data_dir)
    keep = partial(last_accepted.save, path=accepted) if accepted else None
    made_from = load_config(built, os.environ) if built else None
    reload = Reload(lambda: load_config(config, os.environ), keep, made_from)
    run(run_server(settings, mode.value, data_dir, parent, reload, wiring.value))


@app.command("envoy-config")
def envoy_config(
    target: Annotated[
        Target, typer.Option("--target", help="Whose configuration.")
    ] = Target.bootstrap,
    wiring: WiringOption = Wiring.gate,
    config: ConfigFile = None,
    upstream: Annotated[
        list[str] | None, typer.Option("--upstream", help="Model server URL; may be repeated.")
    ] = None,
    on_outage: Outage = OnOutage.closed,
    gateway: Annotated[
        str | None, typer.Option("--gateway", help="Of a mesh, as NAMESPACE/NAME.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Of the policy server in a mesh.")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", help="What this Envoy calls itself.")
    ] = None,
) -> None:
    """Print the Envoy side of a configuration."""
    from policy_server.config import load_config
    from policy_server.envoy_config.command import Asked, render

    settings = load_config(config, os.environ)
    asked = Asked(
        target=target.value,
        wiring=wiring.value,
        on_outage=on_outage.value,
        upstreams=upstream or (),
        gateway=gateway,
        namespace=namespace,
        node=node,
    )
    sys.stdout.write(render(settings, asked))


@app.command()
def journal(
    action: Annotated[JournalAction, typer.Argument(help="Who waits, is it sound, in numbers.")],
    config: ConfigFile = None,
    data_dir: DataDir = Path("data"),
) -> None:
    """Look into the journal, or (`salvage`, without a server) save what is left of it."""
    from policy_server.app.journal_command import run_journal
    from policy_server.config import load_config

    settings = load_config(config, os.environ)
    raise typer.Exit(run_journal(action.value, settings, data_dir, console()))


@app.command()
def check(
    config: ConfigFile = None,
    files: Annotated[
        bool, typer.Option("--files/--no-files", help="Look at the files that it names, too.")
    ] = True,
    data_dir: DataDir = Path("data"),
) -> None:
    """Validate a configuration file: every error names file, line or key, and the fix."""
    from policy_server.config import load_config
    from policy_server.config_check import check_files, warnings_of

    settings = load_config(config, os.environ)
    if files:
        check_files(settings, data_dir)
    for warning in warnings_of(settings):
        print(f"policy-server: warning: {warning}", file=sys.stderr)
    pools = ", ".join(pool.name for pool in settings.pools)
    print(f"{config or 'the defaults'}: ok; pools: {pools}")
    blind = ", ".join(pool.name for pool in settings.pools if not pool.backends.known)
    if blind:
        print(
            f"no scaling from zero for {blind}: nothing tells which backends are ready, so "
            "requests fail while there is none; set pools[].backends to hold them instead"
        )


@app.command()
def health(
    config: ConfigFile = None,
    grpc: Annotated[
        str | None, typer.Option("--grpc", help="host:port instead of the configured one.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds.")] = 3.0,
) -> None:
    """Ask a running policy server whether it serves: exit code 0 or 1, for health checks."""
    from policy_server.adapters.health_check import ask_health
    from policy_server.config import load_config

    with usage():
        print(ask_health(load_config(config, os.environ), grpc, timeout))


@app.command()
def backend(
    port: Annotated[int, typer.Option("--port", help="0 = any free one.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 64,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV cache.")] = 400_000,
    step_ms: Annotated[float, typer.Option(help="Milliseconds of every step.")] = 10.7,
    seq_ms: Annotated[float, typer.Option(help="Milliseconds per sequence and step.")] = 0.2,
    prefill_tps: Annotated[float, typer.Option(help="Prompt tokens per second.")] = 30_000.0,
    cold_start: Annotated[float, typer.Option(help="Seconds of 503 at the start.")] = 0.0,
    orca: Annotated[bool, typer.Option("--orca", help="Send ORCA load reports.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="Serve this one; 404 for others.")
    ] = None,
) -> None:
    """Run the model-server emulator: OpenAI API, continuous batching, vLLM's metrics."""
    from policy_server.backend.params import BackendParams, EngineParams
    from policy_server.backend.server import run_backend

    with usage():
        engine = EngineParams(
            max_num_seqs=max_num_seqs,
            kv_tokens=kv_tokens,
            step_ms=step_ms,
            seq_ms=seq_ms,
            prefill_tps=prefill_tps,
        )
        params = BackendParams(engine, cold_start_s=cold_start, orca=orca)
        if model is not None:
            params = dataclasses.replace(params, model=model, only_model=True)
        if not 0 <= port < 65536:
            raise ValueError(f"--port: {port} is no port; choose 0 (any free one) to 65535")
    run(run_backend(params, host, port, lambda url: print(f"ready {url}", flush=True)))


def _load_pools(path: Path | None) -> list[PoolParams]:
    from policy_server.config import load_config, to_pool_params

    return to_pool_params(load_config(path, os.environ))


app.add_typer(jobs_app)
app.command("simulate")(simulate_command(_load_pools))


@app.command()
def demo(
    upstream: Annotated[
        list[str] | None, typer.Option("--upstream", help="Instead of the emulator.")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Where clients connect.")] = 10000,
    grpc_port: Annotated[
        int | None, typer.Option("--grpc-port", help="9002, or as server.grpc says.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="9003, or as server.http says.")
    ] = None,
    envoy_admin_port: AdminPort = 9901,
    config: ConfigFile = None,
    data_dir: DataDir = Path("data"),
) -> None:
    """Run everything on this machine and print what to try (what `make run` does)."""
    from policy_server.demo import Demo, run_demo

    ports = port, envoy_admin_port
    demo = Demo(upstream or [], *ports, config, data_dir, grpc_port, http_port)
    raise typer.Exit(run_demo(demo))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"policy-server {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Overload control for model APIs behind Envoy."""


app.command()(load)
app.command()(top)
app.command()(warmup)


def main() -> None:
    """The console script: runs a command and turns what went wrong into one line and a code."""
    try:
        code = app(prog_name=NAME, standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # typer's; where it lies depends on typer
            print(error, file=sys.stderr)
            sys.exit(2)
        _leave(*_explained(error))
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code and the line for what a person can mend; anything else is a bug: raised."""
    from policy_server.config_source import ConfigError

    shown = getattr(error, "format_message", None)  # typer's, for wrong usage
    if shown is not None:
        text = shown().replace("Value error, ", "").rstrip(".")
        command = getattr(getattr(error, "ctx", None), "command_path", NAME)
        return int(getattr(error, "exit_code", 2)), f"{text}. See: {command} --help"
    if isinstance(error, ConfigError):
        return 2, str(error)
    if isinstance(error, OSError):
        return 1, _without_number(error)
    raise error


def _without_number(error: OSError) -> str:
    """The error for people: what it is about, and what is wrong with it."""
    if not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _leave(code: int, message: str) -> None:
    print(f"policy-server: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
