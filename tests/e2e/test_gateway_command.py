"""`policy-server gateway`: what happens when a part of it dies, is stopped, or cannot start."""

# ruff: noqa: ASYNC110, ASYNC240 - another process has no event to wait for

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from policy_server.processes import port_taken
from tests.support import wired
from tests.support.echo_upstream import EchoUpstream, running_upstream
from tests.support.envoy_process import wait_http_ok
from tests.support.gateway_command import GatewayCommand, command_line, running_gateway
from tests.support.small_disk import small_disk

ONE_SLOT = """
pools: [{limit: {algorithm: fixed, initial: 1, max: 1}}]
classes: {P0: {max_wait_s: 600}, P1: {max_wait_s: 600}, P2: {max_wait_s: 600}}
"""


@contextlib.asynccontextmanager
async def one_slot(
    directory: Path, log_into: int | None = None
) -> AsyncIterator[tuple[GatewayCommand, EchoUpstream]]:
    """A gateway that lets one request at a time through."""
    where = wired.ports()
    config = directory / "policy.yaml"
    config.write_text(ONE_SLOT)
    async with (
        running_upstream(where["upstream"]) as upstream,
        running_gateway(directory, where, "--config", str(config), log_into=log_into) as gateway,
    ):
        yield gateway, upstream


async def post(gateway: GatewayCommand, path: str = "/v1/chat/completions", **headers: str) -> int:
    url = gateway.url + path
    async with aiohttp.ClientSession() as http, http.post(url, headers=headers) as response:
        await response.read()
        return response.status


async def busy(gateway: GatewayCommand, upstream: EchoUpstream) -> asyncio.Task[int]:
    """A request that takes the one slot until the upstream's `finish`."""
    task = asyncio.create_task(post(gateway, "/slow"))
    async with asyncio.timeout(20):
        while not upstream.requests:
            await asyncio.sleep(0.01)
    return task


async def until_waiting(gateway: GatewayCommand, count: int) -> None:
    """Until `count` requests wait in the room, as the metrics tell."""
    url = f"http://127.0.0.1:{gateway.ports['http']}/metrics"
    async with aiohttp.ClientSession() as http, asyncio.timeout(20):
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with http.get(url) as response:
                    lines = (await response.text()).splitlines()
                waiting = [line for line in lines if line.startswith("policy_waiting{")]
                if sum(float(line.split()[-1]) for line in waiting) == count:
                    return
            await asyncio.sleep(0.02)


async def test_a_standby_that_is_lost_is_replaced_and_takes_over(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, upstream):
        active, first = await gateway.until_policy_pids(2)
        os.kill(first, signal.SIGKILL)
        await gateway.until_policy_pids(1)
        again, second = await gateway.until_policy_pids(2)
        assert again == active
        task = await busy(gateway, upstream)
        os.kill(active, signal.SIGKILL)
        upstream.finish.set()
        assert await task == 200
        assert (await gateway.until_policy_pids(2))[0] == second
        assert await post(gateway) == 200
        said = gateway.log.read_text()
        assert "the standby ended (signal 9); another one is started in 1 s" in said
        assert "did not come up" not in said


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stuck"])
async def test_a_policy_server_that_is_lost_loses_nobody(
    tmp_path: Path, harm: signal.Signals
) -> None:
    async with one_slot(tmp_path) as (gateway, upstream):
        first = await busy(gateway, upstream)
        held = [asyncio.create_task(post(gateway)) for _ in range(20)]
        await until_waiting(gateway, 20)
        active, standby = await gateway.until_policy_pids(2)
        os.kill(active, harm)
        upstream.finish.set()
        assert {await task for task in (first, *held)} == {200}
        assert gateway.policy_pids()[0] == standby
        assert len(await gateway.until_policy_pids(2)) == 2  # the next standby
        stuck = "it is stuck; killing it" in gateway.log.read_text()
        assert stuck == (harm == signal.SIGSTOP)


async def test_killed_again_and_again_it_serves_again(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, _):
        for _ in range(6):
            os.kill(gateway.policy_pids()[0], signal.SIGKILL)
            assert await post(gateway) == 200


@pytest.mark.parametrize("edit", ["pools: [{limit: {max: nonsense", "server: {http: 127.0.0.1:1}"])
async def test_a_spoiled_configuration_file_does_not_matter_to_a_take_over(
    tmp_path: Path, edit: str
) -> None:
    async with one_slot(tmp_path) as (gateway, _):
        (tmp_path / "policy.yaml").write_text(edit)  # half written, or not for this Envoy
        os.kill(gateway.policy_pids()[0], signal.SIGKILL)
        assert await post(gateway) == 200
        assert gateway.process.returncode is None


@pytest.mark.parametrize("reader", ["stalls", "leaves"])
async def test_whoever_reads_the_log_holds_up_no_take_over(reader: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    async with one_slot(tmp_path, log_into=writing) as (gateway, _):
        assert await post(gateway) == 200
        if reader == "leaves":
            os.close(reading)
        else:
            os.set_blocking(writing, False)
            with contextlib.suppress(BlockingIOError):
                while os.write(writing, b"x"):
                    pass
            os.set_blocking(writing, True)
        os.kill(gateway.policy_pids()[0], signal.SIGKILL)
        assert await post(gateway) == 200
        assert gateway.process.returncode is None
    os.close(writing)
    if reader == "stalls":
        os.close(reading)


async def test_the_gateway_speaks_in_log_lines(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, _):
        os.kill(gateway.policy_pids()[0], signal.SIGKILL)
        assert await post(gateway) == 200
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines() if line[:1] == "{"]
    said = [line["detail"] for line in lines if line["event"] == "gateway"]
    assert said == ["the policy server ended (signal 9); the standby takes over"]


async def test_a_second_gateway_on_the_same_folder_changes_nothing(tmp_path: Path) -> None:
    """Its ports must not be the ones that the first one's standby takes over with."""
    async with one_slot(tmp_path) as (gateway, _):
        more = command_line(tmp_path, wired.ports(), "--upstream", "http://127.0.0.1:1")
        second = await asyncio.create_subprocess_exec(*more, stderr=asyncio.subprocess.PIPE)
        _, said = await second.communicate()
        assert second.returncode == 2
        assert said.decode().splitlines() == [
            f"policy-server: --data-dir: {tmp_path / 'data'} is in use by the gateway with process "
            f"id {gateway.process.pid}; stop that one, or choose another folder"
        ]
        os.kill(gateway.policy_pids()[0], signal.SIGKILL)
        assert await post(gateway) == 200


async def test_a_killed_envoy_is_started_again(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, _):
        os.kill(gateway.envoy_pid(), signal.SIGKILL)
        await wait_http_ok(f"{gateway.url}/v1/models")
        assert await post(gateway) == 200


@pytest.mark.parametrize("how", ["full", "read-only"])
async def test_a_disk_in_trouble_keeps_no_gateway_from_starting(how: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", "4m") as disk:
        if not disk.mounted:
            pytest.fail("no disk may be mounted here: run the tests with CAP_SYS_ADMIN")
        async with one_slot(tmp_path) as (gateway, _):
            assert await post(gateway) == 200
            if how == "full":
                disk.fill()
                os.kill(gateway.envoy_pid(), signal.SIGKILL)
                disk.fill()
                await wait_http_ok(f"{gateway.url}/v1/models")
                assert await post(gateway) == 200
        disk.fill()
        disk.read_only(how == "read-only")
        async with one_slot(tmp_path) as (gateway, _):
            assert await post(gateway) == 200
            os.kill(gateway.envoy_pid(), signal.SIGKILL)
            await wait_http_ok(f"{gateway.url}/v1/models")
            os.kill(gateway.policy_pids()[0], signal.SIGKILL)
            assert await post(gateway) == 200


async def test_a_killed_envoy_gives_its_slots_back_at_once(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, upstream):
        cut = await busy(gateway, upstream)
        os.kill(gateway.envoy_pid(), signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await cut
        await wait_http_ok(f"{gateway.url}/v1/models")
        # Unheard slots come back after 20 s; this one does not wait for that long.
        assert await post(gateway, prefer="wait=10") == 200


async def test_sigterm_finishes_what_is_in_flight_and_answers_who_waits(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, upstream):
        first = await busy(gateway, upstream)
        held = [asyncio.create_task(post(gateway)) for _ in range(5)]
        await until_waiting(gateway, 5)
        gateway.process.send_signal(signal.SIGTERM)
        assert {await task for task in held} == {503}
        assert not first.done()
        upstream.finish.set()
        assert await first == 200
        assert await asyncio.wait_for(gateway.process.wait(), 30) == 0
        listeners = ("gateway", "grpc", "http", "admin")
        assert not [name for name in listeners if port_taken("127.0.0.1", gateway.ports[name])]


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, upstream):
        first = await busy(gateway, upstream)
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            while "draining" not in gateway.log.read_text():
                await asyncio.sleep(0.01)
        gateway.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(gateway.process.wait(), 10) == 0
        with pytest.raises(aiohttp.ClientError):
            await first


async def test_nothing_survives_a_killed_supervisor(tmp_path: Path) -> None:
    async with one_slot(tmp_path) as (gateway, _):
        children = list(gateway.children())
        assert len(children) == 3
        gateway.process.kill()
        await gateway.process.wait()
        async with asyncio.timeout(10):
            while any(Path(f"/proc/{pid}").exists() for pid in children):
                await asyncio.sleep(0.02)


def run(directory: Path, where: dict[str, int], *more: str) -> subprocess.CompletedProcess[str]:
    command = command_line(directory, where, *more)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("gateway", "--port"),
        ("grpc", "--grpc-port"),
        ("http", "--http-port"),
        ("admin", "--envoy-admin-port"),
    ],
)
def test_a_taken_port_is_one_line_that_names_the_flag(tmp_path: Path, name: str, flag: str) -> None:
    where = wired.ports()
    with socket.create_server(("127.0.0.1", where[name])):
        result = run(tmp_path, where, "--upstream", "http://127.0.0.1:1")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"{flag}: cannot listen on 127.0.0.1:{where[name]}" in result.stderr


def test_a_configuration_error_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "policy.yaml"
    config.write_text("rom: {}\n")
    result = run(tmp_path, wired.ports(), "--upstream", "http://h", "--config", str(config))
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        f"policy-server: {config}:1: rom: unknown key; did you mean 'room'?"
    ]
