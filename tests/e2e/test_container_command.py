"""What the image runs, run here: entry point, every command line, health checks, SIGTERM, and
nothing written outside of its volume."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cryptography.x509 import DNSName

from policy_server.processes import tied_to_us
from tests.support import read_only_root
from tests.support.certificates import write_tls
from tests.support.container import DOCKER, command, command_lines, compose, environment
from tests.support.envoy_process import free_ports, wait_http_ok
from tests.support.stack import chat

BIN = Path(sys.executable).parent
LINES = command_lines()


class Container:
    """The image's commands as processes: its environment, its volume in a folder of ours, all else
    read-only. `scratch`: it has a /tmp."""

    def __init__(self, folder: Path, *, scratch: bool = False) -> None:
        if not read_only_root.available():
            pytest.fail("this kernel has no Landlock (Linux 5.13, `lsm=landlock,…`)")
        self.data, self.outside = folder / "data", folder / "outside"
        self.config = self.outside / "etc/policy.yaml"
        for each in (self.data, self.config.parent, folder / "tmp"):
            each.mkdir(parents=True)
        self.config.touch()  # as in the image
        self.grpc, self.http = free_ports(2)
        self.process: asyncio.subprocess.Process
        self._writable = [self.data, *([folder / "tmp"] if scratch else [])]
        self._env = {
            **{name: self._here(value) for name, value in environment().items()},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.outside),
            "TMPDIR": str(folder / "tmp"),
            "POLICY_SERVER__GRPC": f"0.0.0.0:{self.grpc}",
            "POLICY_SERVER__HTTP": f"0.0.0.0:{self.http}",
        }

    def _here(self, word: str) -> str:
        word = word.replace("/etc/policy", str(self.config.parent))
        return word.replace("/data", str(self.data))

    async def run(self, words: list[str]) -> asyncio.subprocess.Process:
        """One of the image's commands, in its environment."""
        own = [self._here(word) for word in words]
        fence = [sys.executable, read_only_root.__file__, *map(str, self._writable), "/dev", "--"]
        return await asyncio.create_subprocess_exec(
            *tied_to_us([*fence, str(BIN / own[0]), *own[1:]]),
            cwd=self.data,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def health(self, check: list[str] | None = None) -> tuple[int | None, str]:
        """A health check's exit code and what it says; without one the image's."""
        process = await self.run(check or command("HEALTHCHECK"))
        said, complained = await process.communicate()
        return process.returncode, (said + complained).decode().strip()


@contextlib.asynccontextmanager
async def running(
    container: Container, words: list[str], ready: str, config: str = ""
) -> AsyncIterator[None]:
    """The entry point with these words, until `ready` answers 200."""
    container.config.write_text(config)
    container.process = await container.run(command("ENTRYPOINT") + words)
    try:
        await wait_http_ok(ready, container.process)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            container.process.kill()
        _, complained = await container.process.communicate()
        print(complained.decode()[-6000:])


async def stopped(container: Container) -> int:
    """Its exit code after what an engine sends."""
    container.process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(container.process.wait(), 20)


@pytest.mark.parametrize("whose", [name for name, line in LINES.items() if line[0] == "serve"])
async def test_the_container_serves_says_so_and_stops(whose: str, tmp_path: Path) -> None:
    container = Container(tmp_path)
    async with running(container, LINES[whose], f"http://127.0.0.1:{container.http}/readyz"):
        assert await container.health() == (0, "SERVING")
        assert await stopped(container) == 0
        code, said = await container.health()
        assert code == 1
        assert "is the policy server running?" in said
        assert len(said.splitlines()) == 1
    assert list(container.outside.rglob("*")) == [container.config.parent, container.config]


async def test_a_command_that_writes_elsewhere_is_found(tmp_path: Path) -> None:
    """Also when it is done with it at once; below the volume it may."""
    container = Container(tmp_path)
    for where, code in (("'.'", 0), ("os.environ['HOME']", 1), ("os.environ['TMPDIR']", 1)):
        program = f"import os; open({where} + '/file', 'w').close()"
        assert (await container.health(["python", "-c", program]))[0] == code, where


async def test_compose_starts_a_gateway_in_front_of_its_model(tmp_path: Path) -> None:
    """Both lines of words as they stand, on ports of ours."""
    services = compose()["services"]
    (port, admin, upstream) = free_ports(3)
    (tmp_path / "model").mkdir()
    model = Container(tmp_path / "model", scratch="tmpfs" in services["model"])
    line = [*LINES["compose model"], "--port", str(upstream)]
    async with running(model, line, f"http://127.0.0.1:{upstream}/health"):
        _, *check = services["model"]["healthcheck"]["test"]
        own = [word.replace(":8000/", f":{upstream}/") for word in check]
        assert await model.health(own) == (0, "")

        (tmp_path / "gateway").mkdir()
        gateway = Container(tmp_path / "gateway", scratch="tmpfs" in services["gateway"])
        given = {"UPSTREAM": f"http://127.0.0.1:{upstream}"}
        line = [
            re.sub(r"\$\{(\w+):-[^}]*\}", lambda found: given[found[1]], word)
            for word in LINES["compose gateway"]
        ]
        line += ["--port", str(port), "--envoy-admin-port", str(admin)]
        text = (DOCKER / "policy.yaml").read_text("utf-8")
        ready = f"http://127.0.0.1:{gateway.http}/readyz"
        async with running(gateway, line, ready, text), aiohttp.ClientSession() as http:
            await wait_http_ok(f"http://127.0.0.1:{port}/v1/models", gateway.process)
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with http.post(url, json=chat(3)) as answer:
                assert answer.status == 200
                assert "x-policy-class" in answer.headers
            assert await gateway.health() == (0, "SERVING")
            assert await stopped(gateway) == 0


async def test_its_health_check_works_under_tls(tmp_path: Path) -> None:
    """Nobody tells it more than the file that is mounted; the certificate names the Service."""
    files = write_tls(tmp_path, DNSName("policy-server.policy.svc"))
    listed = ", ".join(f"{key}: {files[key]}" for key in ("cert", "key"))
    container = Container(tmp_path)
    ready, config = f"http://127.0.0.1:{container.http}/readyz", f"server: {{tls: {{{listed}}}}}"
    async with running(container, command("CMD"), ready, config):
        assert await container.health() == (0, "SERVING")


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--grpc", "nowhere"], "not host:port"), (["--config", "no.yaml"], "no such file")],
)
async def test_a_health_check_that_was_asked_wrong_says_so(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    process = await Container(tmp_path).run(["policy-server", "health", *flags])
    _, complained = await process.communicate()
    assert process.returncode == 2
    assert said in complained.decode()
