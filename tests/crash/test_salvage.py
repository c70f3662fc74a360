"""A damaged journal: what can be read of it goes on, and nothing else is made of it."""

from __future__ import annotations

import asyncio
import io
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from policy_server.app.journal_command import run_journal
from policy_server.config import Config
from policy_server.core.request import Priority, Request
from policy_server.journal.jobs import Answer, Ending, Job, JobRequest, JobState, NewJob
from policy_server.journal.port import RequestContext
from policy_server.journal.sqlite import salvage
from policy_server.journal.sqlite.jobs import SqliteJobs
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.support.jobs_stage import stored_answer
from tests.support.small_disk import small_disk

PAGE = 4096
JOBS, ENDED, PLACES = 400, 100, 200


def body_of(number: int) -> bytes:
    """From nothing to many pages."""
    return random.Random(number).randbytes(number % 40 * 500)


def new_job(number: int) -> NewJob:
    now = time.time()
    names = (f"{number:032x}", f"t{number % 7}", "chat", Priority.P2, "POST", f"/v1/{number}")
    job = Job(*names, now, now + 3600.0, owner=f"t{number % 7}")
    request = JobRequest("h", (("n", str(number)),), b"", body_of(number))
    return NewJob(job, request, f"uid{number}", f"key{number}", b"d")


async def a_journal(path: Path) -> None:
    """Places and jobs, some of which have ended, all in the file itself."""
    journal = SqliteJournal(Store(StoreOptions(path, lock_wait_s=0.0)))
    journal.open()
    jobs = SqliteJobs(journal.store)
    await jobs.load()
    for number in range(PLACES):
        request = Request(f"u{number}", "chat", Priority.P1, 1.0, 2.0, path="/v1/" + "x" * 200)
        journal.append_waiting(request, RequestContext())
    for number in range(JOBS):
        await jobs.accept(new_job(number))
    for number in range(ENDED):
        answer = Answer(200, (("n", str(number)),), body_of(number)[::-1])
        await jobs.finish(Ending(f"{number:032x}", JobState.DONE, time.time(), "", answer))
    await journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def what_is_there(path: Path) -> tuple[set[str], dict[str, bytes | None], set[str]]:
    """Ids of all jobs, bodies and answers by id, uids of the places: as a server finds them."""
    journal = SqliteJournal(Store(StoreOptions(path, lock_wait_s=0.0)))
    journal.open()
    jobs = SqliteJobs(journal.store)
    await jobs.load()
    ids, contents = set(), dict[str, bytes | None]()
    for job in await jobs.listed(None, 10 * JOBS):
        ids.add(job.id)
        if job.state.ended:
            answer = await stored_answer(jobs, job.id)
            contents[job.id] = None if answer is None else answer.body
        else:
            request = await jobs.request(job.id)
            contents[job.id] = None if request is None else request.body
        assert await jobs.history(job.id)
    places = {place.request.uid for place in journal.load()}
    again = await jobs.accept(new_job(JOBS))
    assert not again.existing
    assert journal.stats().error is None
    await journal.close()
    return ids, contents, places


def run(path: Path, action: str) -> tuple[int, str]:
    said = io.StringIO()
    code = run_journal(action, Config(), path.parent, Console(file=said, width=200))
    return code, said.getvalue()


def broken(raw: bytes, seed: int) -> bytes:
    """Some pages are something else now; not the one that says what the file is."""
    rng, pages = random.Random(seed), bytearray(raw)
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(20, len(raw) // PAGE) * PAGE
        how = rng.randrange(3)
        if how == 0:
            pages[at : at + PAGE] = bytes(PAGE)
        elif how == 1:
            pages[at : at + PAGE] = rng.randbytes(PAGE)
        else:
            other = rng.randrange(1, len(raw) // PAGE) * PAGE
            pages[at : at + PAGE] = raw[other : other + PAGE]
    return bytes(pages)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "journal.db"
    asyncio.run(a_journal(path))
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(12))
async def test_what_can_be_read_goes_on(tmp_path: Path, sound: bytes, seed: int) -> None:
    path = tmp_path / "journal.db"
    damaged = broken(sound, seed)
    path.write_bytes(damaged)
    if run(path, "verify")[0] == 0:
        pytest.fail("nothing was damaged: choose other pages")
    code, said = run(path, "salvage")
    assert code == 0, said
    assert (tmp_path / "journal.db.damaged").read_bytes() == damaged
    lines = run(path, "verify")[1].splitlines()
    assert all(line.endswith((": sound", "will fail")) for line in lines), lines
    ids, contents, places = await what_is_there(path)
    known = {f"{number:032x}": number for number in range(JOBS)}
    assert ids <= set(known)
    whole = 0
    for job_id, content in contents.items():
        number = known[job_id]
        expected = body_of(number)[::-1] if number < ENDED else body_of(number)
        whole += content == expected
        # SQLite has no checksums: what a page holds may be wrong, never whose it is
        assert content is None or len(content) == len(expected)
    assert whole > JOBS // 4  # a page that leads to others may be among the broken ones
    assert len(places) > PLACES // 2


async def test_one_broken_leaf_costs_its_own_rows_only(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "journal.db"
    at = next(at for at in range(PAGE, len(sound), PAGE) if b'"u150"' in sound[at : at + PAGE])
    path.write_bytes(sound[:at] + b"\xaa" * PAGE + sound[at + PAGE :])
    lost = sound[at : at + PAGE].count(b'"uid":"u')
    found = salvage.salvage(path)
    assert lost > 1
    assert found.rows["places"] == PLACES - lost
    assert found.lost == {"places": lost}
    assert found.rows["jobs"] == found.rows["job_contents"] == JOBS
    ids, contents, places = await what_is_there(path)
    assert len(ids) == JOBS
    assert None not in contents.values()
    assert len(places) == PLACES - lost


def test_what_is_sound_in_use_or_no_journal_stays_as_it_is(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(sound)
    assert run(path, "salvage") == (1, f"{path}: sound, there is nothing to salvage\n")
    assert path.read_bytes() == sound
    nothing = b"nonsense" + sound[8:]
    path.write_bytes(nothing)
    code, said = run(path, "salvage")
    assert code == 1
    assert "nothing can be read in it; move it and its -wal away" in said
    assert path.read_bytes() == nothing
    path.unlink()
    assert "no such file" in run(path, "salvage")[1]
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE other (x)")
    assert "a SQLite file of something else" in run(path, "salvage")[1]


async def test_not_while_a_server_has_it(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(sound)
    journal = SqliteJournal(Store(StoreOptions(path, lock_wait_s=0.0)))
    journal.open()
    code, said = run(path, "salvage")
    assert (code, "in use by process" in said) == (1, True)
    await journal.close()


def test_on_a_full_disk_nothing_changes(tmp_path: Path, sound: bytes) -> None:
    damaged = broken(sound, 1)
    with small_disk(tmp_path / "disk", size="8m") as disk:
        path = disk.path / "journal.db"
        path.write_bytes(damaged)
        disk.fill()
        code, said = run(path, "salvage")
        assert code == 1
        assert "full" in said or "No space" in said
        assert path.read_bytes() == damaged
        assert not path.with_name("journal.db.salvaged").exists()
        disk.free()
