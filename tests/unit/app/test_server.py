"""A start that fails leaves nothing behind: no task, no thread, no port, no lock."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from policy_server.adapters.used_tickets import UsedInFile
from policy_server.app import Parent, run_server
from policy_server.app.server import PolicyServer
from policy_server.config import Config, ConfigError
from policy_server.core.outcome import TicketOutcome
from policy_server.core.request import Priority
from policy_server.jobs.vault import Vault, load_key
from policy_server.journal.jobs import Answer, Ending, Job, JobRequest, JobState, NewJob
from policy_server.journal.port import Learned
from policy_server.journal.sqlite.database import open_to_read
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.jobs_queries import sealing_key
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from policy_server.processes import TAKEN, free_port, port_taken, port_trouble
from policy_server.telemetry.logs import configure_logging


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def config(grpc: int, http: int, via: str | None = "http://127.0.0.1:9") -> Config:
    server = {"grpc": f"127.0.0.1:{grpc}", "http": f"127.0.0.1:{http}"}
    return Config.model_validate({"server": server, "jobs": {"via": via}})


async def failing_start(settings: Config, folder: Path, says: str) -> None:
    async def ready() -> None:
        raise AssertionError("it started")

    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=says):
        await run_server(settings, "serve", folder, Parent(lambda: asyncio.create_task(ready())))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
    ours = ("journal-", "log-writer")
    left = [t.name for t in set(threading.enumerate()) - before if t.name.startswith(ours)]
    assert left == []
    await asyncio.sleep(0)  # cancelled tasks end at the loop's next turn
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not port_taken("127.0.0.1", int(settings.server.grpc.rpartition(":")[2]))
    store = Store(StoreOptions(folder / "journal.db", lock_wait_s=0.0))
    store.open()
    await store.close()


async def test_a_port_that_is_taken(taken: int, tmp_path: Path) -> None:
    says = "cannot listen on .*, it is taken; choose another address or stop who holds it"
    await failing_start(config(free_port(), taken), tmp_path, f"server.http: {says}")
    before = config(taken, free_port())
    with pytest.raises(ConfigError, match=f"server.grpc: {says}"):
        await run_server(before, "serve", tmp_path, Parent(lambda: None))


async def test_a_data_directory_that_it_makes_is_its_owners_only(
    taken: int, tmp_path: Path
) -> None:
    """Whatever comes to be in it first."""
    folder = tmp_path / "new" / "data"
    await failing_start(config(free_port(), taken), folder, "server.http: cannot listen")
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    settings = config(free_port(), free_port())
    server = settings.server.model_copy(update={"grpc": f"203.0.113.1:{free_port()}"})
    elsewhere = settings.model_copy(update={"server": server})
    with pytest.raises(ConfigError, match=r"203.*, [Cc]annot assign .*; choose another address$"):
        await run_server(elsewhere, "serve", tmp_path, Parent(lambda: None))


def test_a_name_with_addresses_of_either_kind(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        v6, v4 = (socket.AF_INET6, ("2001:db8::1", port)), (socket.AF_INET, ("127.0.0.1", port))
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in (v6, v4)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert port_trouble("localhost", free_port()) is None, "one of them will do"
    assert port_trouble("localhost", taken) == TAKEN


async def test_a_start_that_fails_forgets_nothing_that_was_learned(
    taken: int, tmp_path: Path
) -> None:
    learned = {"default": {"limit.limit": 77.0, "limit.valid": 77.0}}
    await with_journal(tmp_path, lambda journal: journal.save_learned(learned))
    with pytest.raises(ConfigError, match="cannot listen on"):
        await run_server(config(taken, free_port()), "serve", tmp_path, Parent(lambda: None))
    found: list[Learned] = []
    await with_journal(tmp_path, lambda journal: found.append(journal.load_learned()))
    assert found == [learned]


async def with_journal(folder: Path, use: Callable[[SqliteJournal], None]) -> None:
    journal = SqliteJournal(Store(StoreOptions(folder / "journal.db")))
    journal.open()
    use(journal)
    await journal.close()


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in folder.iterdir()}


async def test_a_second_server_on_one_folder_changes_nothing_for_the_first(tmp_path: Path) -> None:
    first = PolicyServer(config(free_port(), free_port()), "serve", data_dir=tmp_path)
    nonce, now = b"12345678", time.time()
    async with first.running():
        files = _files(tmp_path)
        second = config(free_port(), free_port())
        with pytest.raises(ConfigError, match="in use by process"):
            await run_server(second, "serve", tmp_path, Parent(lambda: None))
        assert _files(tmp_path) == files
        assert first._office._used is not None
        assert first._office._used.use(nonce, int(now) + 60, now) is TicketOutcome.HONOURED
    used = UsedInFile(tmp_path / "used-tickets")
    used.open(now)
    assert used.use(nonce, int(now) + 60, now) is TicketOutcome.USED


async def test_a_journal_that_another_process_owns(tmp_path: Path) -> None:
    owner = Store(StoreOptions(tmp_path / "journal.db"))
    owner.open()
    settings = config(free_port(), free_port())
    with pytest.raises(ConfigError, match=r"journal\.path: .*in use by process"):
        await run_server(settings, "serve", tmp_path, Parent(lambda: None))
    await owner.close()
    assert not [t for t in threading.enumerate() if t.name == "log-writer"]


@pytest.mark.parametrize("step", ["restore", "start_http"])
async def test_anything_else_that_fails(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Callable[[], None]:
        raise ConfigError("broken")

    where = {"restore": "policy_server.jobs.service.Jobs.restore"}
    where["start_http"] = "policy_server.app.server.PolicyServer._start_http"
    monkeypatch.setattr(where[step], fails)
    await failing_start(config(free_port(), free_port()), tmp_path, "broken")


async def kept_answer(folder: Path, size: int) -> str:
    """The id of a job that has ended with so large an answer."""
    store = Store(StoreOptions(folder / "journal.db"))
    store.open()
    jobs, now = SqliteJobs(store), time.time()
    job = Job("ab" * 16, "acme", "default", Priority.P1, "POST", "/x", now, now + 600.0)
    await jobs.accept(NewJob(job, JobRequest("h", (), b"", b""), "uid", "", b""))
    await jobs.finish(Ending(job.id, JobState.DONE, now, answer=Answer(200, (), bytes(size))))
    await store.close()
    return job.id


async def test_no_client_of_the_http_port_keeps_a_server_from_stopping(tmp_path: Path) -> None:
    job_id = await kept_answer(tmp_path, 32_000_000)
    settings = config(free_port(), free_port())
    async with asyncio.timeout(30):
        log = configure_logging()
        server = PolicyServer(settings, "serve", "gate", tmp_path)
        async with server.running():
            port = int(settings.server.http.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /policy/jobs/{job_id}/response HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert await reader.read(12) == b"HTTP/1.1 200", "and no more is read"
        log.close()
    writer.close()


async def test_what_runs_beside_the_streams_outlives_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of it fails once, and is then done all the same."""
    monkeypatch.setattr("policy_server.lasting.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("policy_server.app.server.TICK_S", 0.001)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    log = configure_logging()
    server = PolicyServer(config(free_port(), free_port()), "serve", data_dir=tmp_path)
    assert server.jobs is not None
    done: set[str] = set()

    def once_broken(name: str) -> Callable[[], Awaitable[None]]:
        failed: list[str] = []

        async def work() -> None:
            if not failed:
                failed.append(name)
                raise RuntimeError("a mistake")
            done.add(name)

        return work

    parts = server._work()
    assert len(parts) >= 6
    monkeypatch.setattr(server, "_work", lambda: {name: once_broken(name) for name in parts})
    async with server.running(), asyncio.timeout(10):
        while done != set(parts):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    log.close()


async def begins(settings: Config, folder: Path) -> None:
    """A server starts, is ready and stops again. Raises what its start does when it fails."""
    log = configure_logging()
    try:
        async with (
            PolicyServer(settings, "serve", "gate", folder).running(),
            aiohttp.ClientSession() as client,
            client.get(f"http://{settings.server.http}/readyz") as answer,
        ):
            assert answer.status == 200
    finally:
        log.close()


def sealed_by(folder: Path) -> str | None:
    """The fingerprint of the key that the journal's secrets are sealed with."""
    with contextlib.closing(open_to_read(folder / "journal.db")) as db:
        return sealing_key(db)


async def test_a_start_with_another_key_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLICY_JOBS_KEY", raising=False)
    store = Store(StoreOptions(tmp_path / "journal.db"))
    store.open()
    jobs, now, vault = SqliteJobs(store), time.time(), Vault(load_key(tmp_path, {}))
    await jobs.claim_key(vault.fingerprint, give_up=False)
    job = Job("ab" * 16, "acme", "default", Priority.P1, "POST", "/x", now, now + 600.0)
    content = JobRequest("h", (), vault.seal(job.id, (("authorization", "Bearer x"),)), b"")
    await jobs.accept(NewJob(job, content, "uid", "", b""))
    await store.close()
    key, settings = tmp_path / "jobs.key", config(free_port(), free_port())
    refused = r"jobs wait .*\(1 of them\).*POLICY_JOBS_KEY_LOST=accept"
    kept = key.rename(tmp_path / "kept")
    without = settings.model_copy(update={"jobs": settings.jobs.model_copy(update={"via": None})})
    await begins(without, tmp_path)
    assert not key.exists(), "nothing is opened"
    await failing_start(settings, tmp_path, refused)
    assert sealed_by(tmp_path) == vault.fingerprint, "no other key was claimed by either"
    kept.replace(key)
    await begins(settings, tmp_path)
    key.unlink()
    await failing_start(settings, tmp_path, refused)
    monkeypatch.setenv("POLICY_JOBS_KEY_LOST", "accept")
    await begins(settings, tmp_path)
    another = Vault(key.read_bytes()).fingerprint
    assert sealed_by(tmp_path) == another != vault.fingerprint
    monkeypatch.delenv("POLICY_JOBS_KEY_LOST")
    await begins(settings, tmp_path)
    assert sealed_by(tmp_path) == another


async def test_jobs_without_a_way_any_more_are_listed_and_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_server.jobs.service.SWEEP_S", 0.01)
    store = Store(StoreOptions(tmp_path / "journal.db"))
    store.open()
    kept, now = SqliteJobs(store), time.time()
    soon = Job("ab" * 16, "acme", "default", Priority.P1, "POST", "/x", now, now)
    for job in (soon, replace(soon, id="cd" * 16, expires_at=now + 600.0)):
        await kept.accept(NewJob(job, JobRequest("h", (), b"sealed", b""), job.id, "", b""))
    await store.close()
    settings = config(free_port(), free_port(), via=None)
    log = configure_logging()
    server = PolicyServer(settings, "serve", "gate", tmp_path)
    jobs = server.jobs
    assert jobs is not None
    assert (jobs.intake, server.desk.jobs) == (None, None)
    async with server.running(), asyncio.timeout(10), aiohttp.ClientSession() as client:
        where = f"http://{settings.server.http}"
        while jobs.jobs.counts()[JobState.EXPIRED] != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        async with client.get(f"{where}/policy/jobs") as answer:
            states = [job["status"] for job in (await answer.json())["jobs"]]
        assert states == ["queued", "expired"]
        async with client.get(f"{where}/statusz") as answer:
            status = await answer.json()
        assert status["jobs"]["via"] is None
        assert any("set jobs.via" in warning for warning in status["warnings"])
        async with client.delete(f"{where}/policy/jobs/{'cd' * 16}") as answer:
            assert answer.status == 200
        assert not (tmp_path / "jobs.key").exists()
    log.close()
