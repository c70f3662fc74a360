"""What the image runs, run here: entry point, health check, SIGTERM, and nothing written outside
of its volume."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.x509 import DNSName

from policy_server.processes import tied_to_us
from tests.support.certificates import write_tls
from tests.support.container import command, environment
from tests.support.envoy_process import free_ports, wait_http_ok

BIN = Path(sys.executable).parent


class Container:
    """The image's command as a process: its environment, its volume in a folder of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "etc/policy.yaml"
        self.config.parent.mkdir()
        self.config.touch()  # as in the image
        self.grpc, self.http = free_ports(2)
        self.process: asyncio.subprocess.Process
        self._env = {
            **{name: self._here(value) for name, value in environment().items()},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": "/nonexistent",
            "TMPDIR": "/nonexistent",
            "POLICY_SERVER__GRPC": f"0.0.0.0:{self.grpc}",
            "POLICY_SERVER__HTTP": f"0.0.0.0:{self.http}",
        }

    def _here(self, word: str) -> str:
        word = word.replace("/etc/policy", str(self.folder / "etc"))
        return word.replace("/data", str(self.folder))

    async def run(self, words: list[str]) -> asyncio.subprocess.Process:
        """One of the image's commands, in its environment."""
        own = [self._here(word) for word in words]
        return await asyncio.create_subprocess_exec(
            *tied_to_us([str(BIN / own[0]), *own[1:]]),
            cwd=self.folder,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def health(self) -> tuple[int | None, str]:
        """The health check's exit code and what it says."""
        check = await self.run(command("HEALTHCHECK"))
        said, complained = await check.communicate()
        return check.returncode, (said + complained).decode().strip()

    def written(self) -> set[Path]:
        """Files that it has open for writing."""
        found = set()
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target, info = (
                    os.readlink(link),
                    Path(f"/proc/{self.process.pid}/fdinfo/{link.name}"),
                )
                flags = int(info.read_text().split("flags:")[1].split()[0], 8)
                if target.startswith("/") and flags & (os.O_WRONLY | os.O_RDWR):
                    found.add(Path(target))
        return found


@contextlib.asynccontextmanager
async def running(folder: Path, config: str = "") -> AsyncIterator[Container]:
    container = Container(folder)
    container.config.write_text(config)
    container.process = await container.run(command("ENTRYPOINT") + command("CMD"))
    try:
        await wait_http_ok(f"http://127.0.0.1:{container.http}/readyz", container.process)
        yield container
    finally:
        with contextlib.suppress(ProcessLookupError):
            container.process.kill()
        await container.process.communicate()


async def test_the_container_serves_says_so_and_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as container:
        assert await container.health() == (0, "SERVING")
        outside = {path for path in container.written() if tmp_path not in path.parents}
        assert {path for path in outside if not path.is_relative_to("/dev")} == set()
        container.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(container.process.wait(), 20) == 0
        code, said = await container.health()
        assert code == 1
        assert "is the policy server running?" in said
        assert len(said.splitlines()) == 1


async def test_its_health_check_works_under_tls(tmp_path: Path) -> None:
    """Nobody tells it more than the file that is mounted; the certificate names the Service."""
    files = write_tls(tmp_path, DNSName("policy-server.policy.svc"))
    listed = ", ".join(f"{key}: {files[key]}" for key in ("cert", "key"))
    async with running(tmp_path, f"server: {{tls: {{{listed}}}}}") as container:
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
