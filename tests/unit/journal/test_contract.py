"""What every journal promises; each case runs against each implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from policy_server.core.request import Kind, Priority, Request
from policy_server.journal.port import (
    MAX_TURNS,
    Held,
    Journal,
    JournalClosedError,
    RequestContext,
    Turn,
)
from tests.unit.journal.harness import HARNESSES, Harness

CONTEXT = RequestContext(request_id="req-1")


def request(uid: str) -> Request:
    return Request(
        uid=uid,
        pool="chat",
        priority=Priority.P2,
        arrived=10.0,
        deadline=55.0,
        tenant="acme",
        seats=2,
        kind=Kind.HELD,
        body_bytes=1234,
        prompt_tokens=308,
        max_tokens=64,
        model="llama",
        path="/v1/chat/completions",
        streamed=True,
        returning=True,
        node="envoy-1",
        arrived_wall=1_700_000_000.25,
    )


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    return HARNESSES[request.param](tmp_path)


@pytest.fixture
async def journal(harness: Harness) -> AsyncIterator[Journal]:
    opened = harness.open()
    yield opened
    await opened.close()


async def restarted(harness: Harness, journal: Journal) -> Journal:
    await journal.close()
    return harness.open()


def uids(journal: Journal) -> list[str]:
    return [place.request.uid for place in journal.load()]


async def test_a_new_journal_is_empty(journal: Journal) -> None:
    assert journal.load() == []
    assert journal.load_learned() == {}


async def test_who_waited_is_found_after_a_restart_in_every_detail(
    harness: Harness, journal: Journal
) -> None:
    journal.append_waiting(request("a"), CONTEXT)
    journal = await restarted(harness, journal)
    (place,) = journal.load()
    assert place.request == request("a")
    assert place.context == CONTEXT


async def test_places_keep_their_order(harness: Harness, journal: Journal) -> None:
    for uid in ("c", "a", "b", "d"):
        journal.append_waiting(request(uid), CONTEXT)
    journal.remove("a")
    journal = await restarted(harness, journal)
    assert uids(journal) == ["c", "b", "d"]
    journal.append_waiting(request("e"), CONTEXT)
    journal = await restarted(harness, journal)
    assert uids(journal) == ["c", "b", "d", "e"]


async def test_who_left_the_room_is_not_restored(harness: Harness, journal: Journal) -> None:
    journal.append_waiting(request("a"), CONTEXT)
    journal.remove("a")
    assert uids(await restarted(harness, journal)) == []


async def test_a_resent_request_keeps_its_first_place(harness: Harness, journal: Journal) -> None:
    journal.append_waiting(request("a"), CONTEXT)
    journal.append_waiting(request("b"), CONTEXT)
    journal = await restarted(harness, journal)
    journal.append_waiting(request("a"), RequestContext(request_id="other"))
    assert uids(journal) == ["a", "b"]
    assert journal.load()[0].context == CONTEXT


async def test_removing_an_unknown_uid_is_fine(journal: Journal) -> None:
    journal.remove("never-waited")
    await journal.flush()
    assert journal.load() == []


async def test_a_uid_may_wait_again_after_it_left(journal: Journal) -> None:
    journal.append_waiting(request("a"), CONTEXT)
    journal.append_waiting(request("b"), CONTEXT)
    journal.remove("a")
    journal.append_waiting(request("a"), CONTEXT)
    await journal.flush()
    assert uids(journal) == ["b", "a"]


async def test_slots_in_use_and_turns_survive(harness: Harness, journal: Journal) -> None:
    leases = [Held(request(uid), 12.5, "boot") for uid in "ab"]
    for held in leases:
        journal.lease_granted(held)
    journal.lease_ended("a")
    journal.lease_ended("never granted")
    journal.save_turn(Turn("chat", 2, "acme", 100.0, 5.0, "boot"))
    journal.save_turn(Turn("chat", 2, "acme", 300.0, 5.0, "boot"))
    journal = await restarted(harness, journal)
    (held,) = journal.load_leases()
    kept = held.request
    assert (kept.uid, kept.pool, kept.seats, kept.tenant) == ("b", "chat", 2, "acme")
    assert (held.granted, held.boot) == (12.5, "boot")
    assert journal.load_turns() == [Turn("chat", 2, "acme", 300.0, 5.0, "boot")]


async def test_a_place_that_may_wait_longer_stays_where_it_is(
    journal: Journal, harness: Harness
) -> None:
    for uid in "abc":
        journal.append_waiting(request(uid), CONTEXT)
    await journal.flush()
    longer = replace(request("a"), deadline=355.0, extra_s=300.0)
    journal.prolong(longer)
    journal.prolong(replace(request("unknown"), deadline=355.0))
    assert [place.request.uid for place in journal.load()] == ["a", "b", "c"]
    journal = await restarted(harness, journal)
    places = journal.load()
    assert [place.request.uid for place in places] == ["a", "b", "c"]
    assert (places[0].request, places[0].context) == (longer, CONTEXT)
    await journal.close()


async def test_a_release_ends_the_place_and_begins_the_lease(
    harness: Harness, journal: Journal
) -> None:
    turn = Turn("chat", 2, "acme", 300.0, 5.0, "boot")
    journal.append_waiting(request("a"), CONTEXT)
    journal.append_waiting(request("b"), CONTEXT)
    journal.release(Held(request("a"), 12.5, "boot"), turn)
    assert (journal.stats().waiting, journal.stats().leases) == (1, 1)
    journal = await restarted(harness, journal)
    assert uids(journal) == ["b"]
    assert [held.request.uid for held in journal.load_leases()] == ["a"]
    assert journal.load_turns() == [turn]


async def test_turns_are_bounded(journal: Journal) -> None:
    for n in range(MAX_TURNS + 5):
        journal.save_turn(Turn("chat", 1, f"t{n}", 1.0, 5.0))
    turns = journal.load_turns()
    assert len(turns) == MAX_TURNS
    assert turns[0].tenant == "t5"


async def test_what_was_learned_survives_pool_by_pool(harness: Harness, journal: Journal) -> None:
    journal.save_learned({"chat": {"limit": 40.0, "t0": 0.0107}, "embed": {"limit": 8.0}})
    journal.save_learned({"chat": {"limit": 42.5}})
    journal = await restarted(harness, journal)
    assert journal.load_learned() == {"chat": {"limit": 42.5}, "embed": {"limit": 8.0}}


async def test_saved_numbers_are_a_copy(journal: Journal) -> None:
    numbers = {"limit": 40.0}
    journal.save_learned({"chat": numbers})
    numbers["limit"] = 1.0
    assert journal.load_learned()["chat"]["limit"] == 40.0


async def test_stats_count_the_waiting(journal: Journal) -> None:
    journal.append_waiting(request("a"), CONTEXT)
    journal.append_waiting(request("b"), CONTEXT)
    journal.remove("a")
    await journal.flush()
    stats = journal.stats()
    assert (stats.waiting, stats.healthy, stats.error) == (1, True, None)
    assert stats.pending_writes == 0


async def test_a_closed_journal_refuses_and_closes_twice(journal: Journal) -> None:
    await journal.close()
    await journal.close()
    with pytest.raises(JournalClosedError):
        journal.append_waiting(request("a"), CONTEXT)
    with pytest.raises(JournalClosedError):
        journal.remove("a")
    with pytest.raises(JournalClosedError):
        journal.load()
    with pytest.raises(JournalClosedError):
        journal.save_learned({})
    with pytest.raises(JournalClosedError):
        await journal.flush()
