"""`policy-server demo`: the emulator and a gateway on this machine, with the lines to try.

Both run as the commands a user would type, in processes of their own, so that what is shown here
is what the commands do.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from policy_server.config import load_config
from policy_server.processes import free_port, tied_to_us

COMMAND = (sys.executable, "-m", "policy_server")
EMULATOR_SLOTS = 16
LOAD_RATE = 35  # three times what the emulator's 16 slots carry of answers of 100 tokens


@dataclass(frozen=True, slots=True)
class Demo:
    """What the user chose; no upstream = the emulator."""

    upstreams: Sequence[str]
    port: int = 10000
    admin_port: int = 9901
    config: Path | None = None
    data_dir: Path = Path("data")
    grpc_port: int | None = None
    http_port: int | None = None


def run_demo(demo: Demo) -> int:
    """Runs until a signal; the gateway's exit code."""
    return asyncio.run(_run(demo))


async def _run(demo: Demo) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    backend = None
    upstreams = list(demo.upstreams)
    if not upstreams:
        port = free_port()
        backend = await _start("backend", "--port", str(port), f"--max-num-seqs={EMULATOR_SLOTS}")
        if not await _first_line(backend):
            return await backend.wait()
        upstreams = [f"http://127.0.0.1:{port}"]
    gateway = await _start(*_gateway_arguments(demo, upstreams))
    try:
        return await _follow(gateway, demo, upstreams, stop)
    finally:
        if backend is not None and backend.returncode is None:
            backend.terminate()
            await backend.wait()


async def _follow(
    gateway: asyncio.subprocess.Process, demo: Demo, upstreams: Sequence[str], stop: asyncio.Event
) -> int:
    """Says what to try once the gateway is ready; ends it when asked to."""
    ended = asyncio.create_task(gateway.wait())
    asked = asyncio.create_task(stop.wait())
    greeted = asyncio.create_task(_greet(gateway, demo, upstreams))
    await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        gateway.terminate()
    code = await ended
    for task in (asked, greeted):
        task.cancel()
    return code


async def _greet(gateway: asyncio.subprocess.Process, demo: Demo, upstreams: Sequence[str]) -> None:
    if await _first_line(gateway):
        http = load_config(demo.config, os.environ).server.http
        if demo.http_port is not None:
            http = f"{http.rpartition(':')[0]}:{demo.http_port}"
        print(greeting(demo.port, http, upstreams, emulated=not demo.upstreams), flush=True)


def greeting(port: int, http: str, upstreams: Sequence[str], *, emulated: bool) -> str:
    """What to try and where to look."""
    url = f"http://127.0.0.1:{port}"
    behind = "the model-server emulator" if emulated else ", ".join(upstreams)
    model = "emulated-7b" if emulated else "MODEL"
    body = f'{{"model":"{model}","max_tokens":20,"messages":[{{"role":"user","content":"hi"}}]}}'
    streamed = body.replace('"max_tokens"', '"stream":true,"max_tokens"')
    chat = f"curl -i {url}/v1/chat/completions -H 'content-type: application/json'"
    return "\n".join(
        (
            f"policy-server is ready: {url} in front of {behind}.",
            "",
            "Try:",
            f"  {chat} -d '{body}'",
            f"  {chat.replace('-i', '-N')} -d '{streamed}'",
            f"  {chat} -H 'x-request-priority: P0' -d '{body}'",
            "",
            "A job: 202 at once, the answer later at its `location`; and all of them:",
            f"  {chat} -H 'prefer: respond-async' -d '{body}'",
            f"  {_own_command()} jobs ls --url http://{http}",
            "",
            "More than it can take, and what becomes of each class:",
            f"  {_own_command()} load --url {url} --rate {LOAD_RATE} --seconds 30 "
            "--mix 0:.12,1:.5,2:.38 --stream",
            "",
            "Look:",
            f"  http://{http}/          the live page",
            f"  http://{http}/statusz   limits, who waits, what was learned",
            f"  http://{http}/metrics   the same for Prometheus",
            "",
            "Ctrl-C ends it.",
        )
    )


def _own_command() -> str:
    """How this shell calls us: by name when on PATH, else by path."""
    if shutil.which("policy-server"):
        return "policy-server"
    script = Path(sys.executable).parent / "policy-server"
    return os.path.relpath(script)


def _gateway_arguments(demo: Demo, upstreams: Sequence[str]) -> list[str]:
    arguments = ["gateway", "--port", str(demo.port), "--data-dir", str(demo.data_dir)]
    arguments += ["--envoy-admin-port", str(demo.admin_port)]
    for flag, port in (("--grpc-port", demo.grpc_port), ("--http-port", demo.http_port)):
        if port is not None:
            arguments += [flag, str(port)]
    for url in upstreams:
        arguments += ["--upstream", url]
    if demo.config is not None:
        arguments += ["--config", str(demo.config)]
    return arguments


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *tied_to_us([*COMMAND, *arguments]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is ours to pass on
    )


async def _first_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()
