"""`policy-server demo` (make run): what it prints works when typed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
import signal
import sys
from pathlib import Path

import aiohttp

from policy_server.processes import tied_to_us
from tests.support import wired


async def test_the_printed_lines_work(tmp_path: Path) -> None:
    where = wired.ports()
    flags = {"gateway": "--port", "grpc": "--grpc-port", "http": "--http-port"}
    flags["admin"] = "--envoy-admin-port"
    arguments = [word for name, flag in flags.items() for word in (flag, str(where[name]))]
    command = [sys.executable, "-m", "policy_server", "demo", *arguments]
    process = await asyncio.create_subprocess_exec(
        *tied_to_us([*command, "--data-dir", str(tmp_path)]),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        printed = await read_until(process, "Ctrl-C")
        curls = [shlex.split(line) for line in printed if line.strip().startswith("curl")]
        answers = [await typed(curl) for curl in curls]
        assert len(answers) == 4
        assert all("x-policy-class" in headers for headers, _ in answers)
        assert answers[1][1].rstrip().endswith("data: [DONE]")
        assert answers[2][0]["x-policy-class"] == "P0"
        assert answers[3][0]["location"].startswith("/policy/jobs/")
        pages = [line.split()[0] for line in printed if line.startswith("  http")]
        assert len(pages) == 3
        async with aiohttp.ClientSession() as http:
            for page in pages:
                async with http.get(page) as response:
                    assert response.status == 200
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def read_until(process: asyncio.subprocess.Process, word: str) -> list[str]:
    """Its lines up to the one with `word`."""
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(60):
        while not lines or word not in lines[-1]:
            line = await process.stdout.readline()
            assert line, "it ended before it was ready"
            lines.append(line.decode())
    return lines


async def typed(curl: list[str]) -> tuple[dict[str, str], str]:
    """Runs the request that a curl line describes."""
    url = next(word for word in curl if word.startswith("http"))
    headers = {
        name: value.strip()
        for flag, text in itertools.pairwise(curl)
        if flag == "-H"
        for name, value in [text.split(":", 1)]
    }
    body = curl[curl.index("-d") + 1]
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, headers=headers, data=body.encode()) as response,
    ):
        assert response.status == (202 if "prefer" in headers else 200)
        return {k.lower(): v for k, v in response.headers.items()}, await response.text()
