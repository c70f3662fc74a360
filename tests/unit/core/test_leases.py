"""A slot is taken once and given back once, also when the news of its end is lost."""

from __future__ import annotations

import pytest

from policy_server.core.leases import (
    LULL_S,
    MAX_NODES,
    NO_CONTACT_S,
    ORPHAN_AGE_S,
    RECALL_S,
    SILENCE_S,
    TRICKLE_S,
    UNHEARD_AGE_S,
    Lease,
    LeaseTable,
)
from policy_server.core.request import Priority
from tests.support.core_builders import P0, P1, request


def lease(
    uid: str,
    at: float = 0.0,
    priority: Priority = P1,
    *,
    seats: int = 1,
    node: str = "envoy-a",
    observed: bool = False,
    streamed: bool = False,
) -> Lease:
    asked = request(uid, priority, at=at, seats=seats, node=node, streamed=streamed)
    return Lease(asked, at, observed, 1.0, last_seen=at)


def table(*leases: Lease) -> LeaseTable:
    result = LeaseTable()
    for one in leases:
        result.grant(one)
    return result


def test_seats_are_counted_per_class_and_come_back() -> None:
    leases = table(
        lease("a", priority=P0, seats=3), lease("b", streamed=True), lease("c", observed=True)
    )
    assert (leases.seats, leases.seats_by_line()[P0], leases.seats_by_line()[P1]) == (5, 3, 2)
    assert (leases.streamed, list(leases.observed), len(leases)) == (1, ["c"], 3)
    for uid in "abc":
        assert leases.end(uid) is not None
    assert (leases.seats, leases.seats_by_line()[P0], leases.seats_by_line()[P1]) == (0, 0, 0)
    assert (leases.streamed, leases.observed, len(leases)) == (0, {}, 0)


def test_a_second_end_is_no_error_and_gives_nothing_back() -> None:
    leases = table(lease("a"), lease("b"))
    assert leases.end("a") is not None
    assert leases.end("a") is None
    assert leases.end("unknown") is None
    assert leases.seats == 1


def test_one_uid_holds_one_lease() -> None:
    with pytest.raises(ValueError, match="a already holds a lease"):
        table(lease("a"), lease("a"))


def test_a_request_that_fell_silent_is_taken_to_have_ended_while_its_envoy_talks() -> None:
    leases = table(lease("quiet"), lease("talks"))
    leases.touch("talks", 15.0)
    leases.node_alive("envoy-a", 15.0)
    assert leases.silent(SILENCE_S - 0.1, 10) == []
    assert leases.silent(SILENCE_S + 1.0, 10) == ["quiet"]


def test_a_whole_envoy_that_fell_silent_frees_nothing() -> None:
    leases = table(*(lease(f"u{i}") for i in range(50)), lease("other", node="envoy-b"))
    leases.node_alive("envoy-a", 1.0)
    leases.node_alive("envoy-b", 99.0)
    leases.touch("other", 99.0)
    assert leases.silent(100.0, 100) == []


def test_an_envoy_that_never_comes_back_gives_its_leases_up_one_a_second() -> None:
    leases = table(*(lease(f"u{i}") for i in range(50)))
    now, freed = ORPHAN_AGE_S, []
    for _ in range(10):
        for uid in leases.silent(now, 100):
            freed.append(uid)
            leases.end(uid)
        now += TRICKLE_S
    assert freed == [f"u{i}" for i in range(10)]


def test_one_sweep_ends_no_more_than_it_may() -> None:
    leases = table(*(lease(f"u{i}") for i in range(500)))
    leases.node_alive("envoy-a", 60.0)
    assert len(leases.silent(61.0, 256)) == 256


def test_an_unknown_envoy_goes_by_the_last_log_of_any() -> None:
    leases = table(lease("a", node="envoy-a"))
    assert leases.silent(30.0, 10) == []
    leases.node_alive("envoy-b", 30.0)
    assert leases.silent(31.0, 10) == ["a"]


def test_an_envoy_without_a_name_has_no_heartbeats_so_that_long_answers_keep_their_slots() -> None:
    leases = table(lease("a", node=""), lease("b", node=""))
    for now in range(30, int(UNHEARD_AGE_S), 10):
        leases.node_alive("router~10.0.0.1", float(now))
        assert leases.silent(now + 1.0, 10) == []
    now = UNHEARD_AGE_S + 1.0
    leases.node_alive("router~10.0.0.1", now)
    assert leases.silent(now, 10) == ["a"]
    leases.end("a")
    assert leases.silent(now, 10) == []
    assert leases.silent(now + TRICKLE_S, 10) == ["b"]


def test_an_envoy_without_a_name_and_without_a_log_gives_its_leases_up_one_a_second() -> None:
    leases = table(lease("a", node=""), lease("b", node=""))
    assert leases.silent(ORPHAN_AGE_S - 1.0, 10) == []
    assert leases.silent(ORPHAN_AGE_S, 10) == ["a"]


def restored(*uids: str, node: str = "") -> LeaseTable:
    """Of before a restart at 0."""
    leases = LeaseTable()
    for uid in uids:
        leases.restore(lease(uid, node=node))
    return leases


def test_a_restored_slot_that_no_heartbeat_speaks_for_is_free_soon_after_its_envoy_is_back() -> (
    None
):
    leases = restored("a", "b", node="envoy-a")
    leases.note_contact("envoy-a", 1.0)
    leases.touch("b", 2.0)
    assert leases.silent(1.0 + RECALL_S - 0.1, 10) == []
    assert leases.silent(1.0 + RECALL_S, 10) == ["a"]


def test_without_heartbeats_restored_slots_are_kept_while_their_answers_end() -> None:
    leases = restored(*"abcdef")
    leases.note_contact("", 1.0)
    now = 1.0
    for uid in "abc":  # told by the log, each within `LULL_S` after the one before
        now += LULL_S - 1.0
        leases.node_alive("router~10.0.0.1", now)
        assert leases.silent(now, 10) == []
        leases.end(uid)
        assert leases.silent(now, 10) == []
    assert leases.silent(now + LULL_S - 0.1, 10) == []
    assert leases.silent(now + LULL_S, 2) == ["d", "e"]
    leases.end("d")
    leases.end("e")
    assert leases.silent(now + LULL_S + 1.0, 10) == ["f"], (
        "what we end ourselves is no sign of life"
    )


def test_without_a_name_and_without_a_word_restored_slots_are_free_after_a_while() -> None:
    leases = restored("a")
    assert leases.silent(NO_CONTACT_S + LULL_S - 0.1, 10) == []
    assert leases.silent(NO_CONTACT_S + LULL_S, 10) == ["a"]


def test_a_sign_of_life_of_an_unknown_request_is_nothing() -> None:
    leases = LeaseTable()
    leases.touch("unknown", 1.0)
    assert list(leases) == []


def test_the_leasesof_envoys_is_bounded_and_forgets_the_most_silent() -> None:
    leases = LeaseTable()
    for i in range(MAX_NODES + 10):
        leases.node_alive("kept", float(i))
        leases.node_alive(f"pod-{i}", float(i))
    assert len(leases.nodes()) == MAX_NODES
    assert "pod-0" not in leases.nodes()
    assert leases.nodes()["kept"] == leases.nodes()[f"pod-{MAX_NODES + 9}"]


def test_the_death_of_an_envoy_ends_the_leases_of_that_life_only() -> None:
    leases = table(
        lease("old", node="edge@1"),
        lease("older", node="edge@0"),
        lease("new", node="edge@2"),
        lease("other", node="edge-b@1"),
        lease("plain", node="edge"),
        lease("none", node=""),
    )
    for node in ("edge@1", "edge@2", "edge", "edge-b@1"):
        leases.node_alive(node, 1.0)
    assert leases.bury("edge@2") == ["old", "older"]
    assert list(leases.nodes()) == ["edge@2", "edge", "edge-b@1"]


def test_an_envoy_without_lives_buries_nobody() -> None:
    leases = table(lease("a", node="edge"), lease("b", node=""), lease("c", node="edge@1"))
    assert leases.bury("edge") == []
    assert leases.bury("") == []
