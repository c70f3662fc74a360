"""Calibration, the plain service, the balancer, the clients' calls and their retries."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from policy_server.core.request import Priority
from policy_server.simulate.backend import Answer
from policy_server.simulate.calibrate import fit, read_points
from policy_server.simulate.cluster import Cluster
from policy_server.simulate.engine import BatchEngine, EngineParams
from policy_server.simulate.errors import InputError
from policy_server.simulate.loop import Loop
from policy_server.simulate.plain import PlainParams, PlainService
from policy_server.simulate.record import mean
from policy_server.simulate.retry import retry_delay_s
from policy_server.simulate.workload import Flow, Lengths, calls_of, steady
from tests.unit.simulate.test_engine import Heard


def test_calibration_recovers_the_step_from_noisy_pairs(tmp_path: Path) -> None:
    rng = Random(1)
    path = tmp_path / "pairs.csv"
    rows = [(b, (0.0107 + 0.0002 * b) * rng.uniform(0.98, 1.02)) for b in range(1, 129)]
    path.write_text("batch,inter_token_s\n" + "\n".join(f"{b},{t}" for b, t in rows))
    fitted = fit(read_points(path))
    assert fitted.step_s == pytest.approx(0.0107, rel=0.05)
    assert fitted.seq_s == pytest.approx(0.0002, rel=0.05)
    assert fitted.error < 0.03
    assert fitted.apply(EngineParams(slots=9)).slots == 9


def test_calibration_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("batch,inter_token_s\n1,0.01\nmany,0.02\n")
    with pytest.raises(InputError, match=r"pairs\.csv:3: expected batch"):
        read_points(path)
    with pytest.raises(InputError, match="two different batch sizes"):
        fit([(4, 0.01), (4, 0.02)])


def test_a_plain_service_carries_servers_over_service_time() -> None:
    loop = Loop()
    heard = Heard(loop)
    service = PlainService(PlainParams(servers=4, service_s=0.1, sigma=0.8), loop, heard, Random(1))
    for n in range(4000):
        service.submit(Answer(f"{n}", 1, 1))
    loop.run(50)
    assert len(heard.last) / 50 == pytest.approx(40, rel=0.05)


def test_the_balancer_prefers_the_emptier_replica_and_skips_the_dead() -> None:
    loop = Loop()
    heard = Heard(loop)
    engines = [BatchEngine(EngineParams(), loop, heard) for _ in range(3)]
    cluster = Cluster(engines, Random(1))
    for n in range(300):
        cluster.submit(Answer(f"{n}", 10, 1000), loop.now)
    assert max(e.active for e in engines) - min(e.active for e in engines) <= 10
    cluster.kill(0)
    assert len(heard.lost) > 80
    for n in range(50):
        cluster.submit(Answer(f"late{n}", 10, 10), loop.now)
    assert engines[0].active == 0
    cluster.kill(1)
    cluster.kill(2)
    assert not cluster.submit(Answer("x", 1, 1), loop.now)


def test_calls_follow_their_rate_and_lengths_and_depend_on_the_seed_alone() -> None:
    lengths = ((0.0, Lengths(output=100)), (50.0, Lengths(output=400)))
    flows = [
        Flow(((0.0, 10.0), (50.0, 40.0)), Priority.P0, lengths=lengths),
        Flow(steady(5.0), Priority.P2),
    ]
    calls = list(calls_of(flows, 3, 100.0))
    assert [c.at for c in calls] == sorted(c.at for c in calls)
    again = list(calls_of(flows, 3, 100.0))
    assert [(c.at, c.prompt, c.output) for c in calls] == [
        (c.at, c.prompt, c.output) for c in again
    ]
    first = [c for c in calls if c.priority is Priority.P0]
    early, late = [c for c in first if c.at < 50], [c for c in first if c.at >= 50]
    assert len(early) == pytest.approx(500, rel=0.15)
    assert len(late) == pytest.approx(2000, rel=0.1)
    assert mean(c.output for c in early) == pytest.approx(100, rel=0.1)
    assert mean(c.output for c in late) == pytest.approx(400, rel=0.1)
    # One flow more leaves the others alone.
    alone = list(calls_of(flows[:1], 3, 100.0))
    assert [c.at for c in alone] == [c.at for c in first]


def test_sdk_clients_obey_retry_after_and_give_up_after_two_retries() -> None:
    rng = Random(1)
    assert retry_delay_s(0, 7.5, True, rng) == 7.5
    assert retry_delay_s(2, 7.5, True, rng) is None
    assert retry_delay_s(0, 7.5, False, rng) is None
    for ignored in (None, 0.0, -1.0, 61.0):
        assert 0.375 <= (retry_delay_s(0, ignored, True, rng) or 0) <= 0.5
        assert 0.75 <= (retry_delay_s(1, ignored, True, rng) or 0) <= 1.0


def test_cached_prompts_take_a_tenth_of_the_prefill() -> None:
    loop = Loop()
    engine = BatchEngine(
        EngineParams(step_s=0.0, seq_s=1e-9, prefill_token_s=1e-3, slots=1, cached_share=0.5),
        loop,
        Heard(loop),
    )
    firsts = []
    for index in range(4):
        answer = Answer(f"{index}", 1000, 1)
        started = loop.now
        engine.submit(answer)
        loop.run(loop.now + 10.0)
        assert answer.first_token_at is not None
        firsts.append(answer.first_token_at - started)
    assert firsts == pytest.approx([1.0, 0.1, 1.0, 0.1], abs=1e-3)


def test_an_answer_goes_to_a_replica_that_serves_its_model() -> None:
    loop = Loop()
    engines = [BatchEngine(EngineParams(), loop, Heard(loop)) for _ in range(3)]
    cluster = Cluster(engines, Random(1), ("small", "large", "large"))
    for index in range(40):
        model = ("small", "large")[index % 2]
        answer = Answer(f"{index}", 10, 10, model)
        assert cluster.submit(answer, 0.0)
        assert (answer.replica == 0) == (model == "small")
    cluster.kill(0)
    assert not cluster.submit(Answer("last", 10, 10, "small"), 0.0)
