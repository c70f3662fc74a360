"""The simulated gateway: what it carries, and that it sees no more than production does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from policy_server.core.request import Priority, Request
from policy_server.core.samples import Completion, LoadReport, Usage
from policy_server.simulate.engine import EngineParams
from policy_server.simulate.gate import CoreGate, Gate
from policy_server.simulate.observer import HEADERS_S, Visibility
from policy_server.simulate.policies.fifo import FifoGate, OpenGate
from policy_server.simulate.record import End
from policy_server.simulate.run import Options, run
from policy_server.simulate.seeds import stream
from policy_server.simulate.workload import Flow, Lengths, Manner, steady
from policy_server.simulate.world import Happening, What, World, core_params

SMALL = World(
    engine=EngineParams(slots=8),
    flows=(Flow(steady(3.0), Priority.P1, lengths=((0.0, Lengths(output=50)),)),),
    duration_s=60.0,
    settle_s=60.0,
)


def core(world: World, seed: int) -> Gate:
    return CoreGate([core_params(world)], stream(seed, "core"))


def test_the_same_seed_is_the_same_run_byte_for_byte() -> None:
    one, two, other = (run(SMALL, core, seed, Options(log=True)) for seed in (1, 1, 2))
    assert one.log
    assert "\n".join(one.log) == "\n".join(two.log)
    assert one.log != other.log


SCRIPT = """
from hashlib import sha256
from dataclasses import replace
from policy_server.simulate.run import Options, run
from tests.unit.simulate.test_gateway import SMALL, core, Happening, What
world = replace(SMALL, replicas=3, happenings=(Happening(30.0, What.KILL, replica=1),))
print(sha256("\\n".join(run(world, core, 5, Options(log=True)).log).encode()).hexdigest())
"""


def test_two_processes_tell_the_same_run() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_every_call_ends_once_and_nothing_is_left() -> None:
    world = replace(SMALL, flows=(replace(SMALL.flows[0], rate=steady(25.0)),))
    result = run(world, core, 1)
    assert {call.end for call in result.calls} == {End.SERVED, End.REFUSED}
    assert result.inflight_at_end == result.open_at_end == result.leases_at_end == 0


class Spy(CoreGate):
    """Notes what it is told."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__([core_params(world)], stream(seed, "core"))
        self.told: Counter[str] = Counter()
        self.observed: set[str] = set()
        self.signalled: set[str] = set()
        self.completions: list[tuple[float, Completion]] = []

    def submit(self, request: Request, now: float) -> list:  # type: ignore[type-arg]
        events = super().submit(request, now)
        self.observed |= {e.request.uid for e in events if getattr(e, "observe", False)}
        return events

    def complete(self, uid: str, completion: Completion, now: float) -> list:  # type: ignore[type-arg]
        self.completions.append((now, completion))
        events = super().complete(uid, completion, now)
        self.observed |= {e.request.uid for e in events if getattr(e, "observe", False)}
        return events

    def first_token(self, uid: str, now: float) -> None:
        self.signalled.add(uid)
        self.told["first_token"] += 1
        super().first_token(uid, now)

    def tokens(self, uid: str, count: int, now: float) -> None:
        self.signalled.add(uid)
        self.told["tokens"] += count
        super().tokens(uid, count, now)

    def usage(self, uid: str, usage: Usage) -> None:
        self.signalled.add(uid)
        super().usage(uid, usage)

    def load_report(self, pool: str, source: str, report: LoadReport, now: float) -> None:
        self.told["report"] += 1
        super().load_report(pool, source, report, now)


def spied(world: World) -> Spy:
    spies: list[Spy] = []

    def make(w: World, seed: int) -> Gate:
        spies.append(Spy(w, seed))
        return spies[0]

    run(world, make, 1)
    return spies[0]


def test_only_observed_answers_are_seen_and_all_their_tokens_are() -> None:
    spy = spied(replace(SMALL, pool=replace(SMALL.pool, observe_messages_per_s=60.0)))
    assert 0 < len(spy.observed) < len(spy.completions)
    assert spy.signalled <= spy.observed
    assert spy.told["first_token"] == len(spy.observed)


def test_a_streamed_answer_shows_headers_to_the_log_and_never_its_first_token() -> None:
    spy = spied(SMALL)
    assert {completion.first_byte_s for _, completion in spy.completions} == {HEADERS_S}


def test_an_unstreamed_answer_comes_whole_and_shows_no_tokens() -> None:
    flow = replace(SMALL.flows[0], manner=Manner(streamed=False))
    spy = spied(replace(SMALL, flows=(flow,)))
    assert spy.told["first_token"] == spy.told["tokens"] == 0
    assert all(c.first_byte_s == c.last_byte_s for _, c in spy.completions)


def test_load_reports_come_only_when_the_engine_sends_them() -> None:
    assert spied(SMALL).told["report"] == 0
    assert spied(replace(SMALL, visibility=Visibility(report_every_s=1.0))).told["report"] > 60


def test_the_impatient_leave_and_free_their_slot() -> None:
    flow = replace(SMALL.flows[0], rate=steady(20.0), manner=Manner(patience_s=2.0))
    result = run(replace(SMALL, flows=(flow,)), lambda w, s: FifoGate(8, early_drop=False), 1)
    ends = Counter(call.end for call in result.calls)
    assert ends[End.LEFT] > 100
    assert ends[End.SERVED] > 100
    assert max(c.ended - c.arrived for c in result.calls if c.end is End.LEFT and c.ended) < 2.1
    assert result.inflight_at_end == 0


def test_sdk_clients_come_back_and_others_do_not() -> None:
    flow = replace(SMALL.flows[0], rate=steady(20.0))
    sdk = replace(flow, manner=Manner(sdk=True))
    assert max(c.attempts for c in run(replace(SMALL, flows=(flow,)), core, 1).calls) == 1
    assert max(c.attempts for c in run(replace(SMALL, flows=(sdk,)), core, 1).calls) == 3


def test_a_dead_replica_fails_what_it_had_and_the_log_frees_the_slots() -> None:
    flow = replace(SMALL.flows[0], rate=steady(15.0))
    dies = (Happening(30.0, What.KILL, replica=1),)
    world = replace(SMALL, flows=(flow,), replicas=2, happenings=dies)
    result = run(world, core, 1)
    failed = [call for call in result.calls if call.end is End.FAILED]
    assert failed
    assert all(call.ended == pytest.approx(30.0) for call in failed)
    assert result.leases_at_end == 0


def test_without_a_replica_every_call_fails_at_once() -> None:
    world = replace(SMALL, happenings=(Happening(0.0, What.KILL),))
    result = run(world, lambda w, s: OpenGate(), 1)
    assert {call.end for call in result.calls} == {End.FAILED}


def test_held_requests_survive_a_restart_of_the_policy_server() -> None:
    flow = replace(SMALL.flows[0], rate=steady(25.0))
    world = replace(SMALL, flows=(flow,), happenings=(Happening(30.0, What.RESTART, 1.0),))
    result = run(world, core, 1)
    assert {call.end for call in result.calls} <= {End.SERVED, End.REFUSED}
    assert result.run_twice == result.open_at_end == 0
    held = [c for c in result.calls if c.arrived < 30 < (c.dispatched or 0)]
    assert len(held) > 3


def test_two_policy_servers_share_the_calls() -> None:
    result = run(replace(SMALL, gateways=2), core, 1, Options(log=True))
    uids = Counter(line.split("uid='")[1][0] for line in result.log if "Admitted(" in line)
    assert abs(uids["0"] - uids["1"]) <= 2
