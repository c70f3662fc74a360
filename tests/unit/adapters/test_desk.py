"""The desk, without a wiring in front of it."""

from __future__ import annotations

import asyncio

import pytest

from policy_server.adapters.classify import Facts
from policy_server.adapters.desk import Desk, Held, Hooks, Words
from policy_server.adapters.ext_proc_messages import GateEncoder
from policy_server.adapters.rules import ClassifyRules
from policy_server.driver import SupersededError
from tests.support.fake_gate import FakeGate, shed

SENT = Facts({":method": "POST", ":path": "/v1", "x-policy-uid": "u", "x-request-id": "req-7"})


async def test_the_logs_know_a_request_that_was_sent_again_by_its_id() -> None:
    gate, hooks, words = FakeGate(decide=lambda _: None), Hooks(), Words(GateEncoder())
    desk = Desk(gate, ClassifyRules(), hooks=hooks)

    def held() -> Held:
        decided = desk.decide(SENT, desk.clock(), words)
        assert isinstance(decided, Held)
        return decided

    older = held()
    wait = asyncio.create_task(desk.wait(older))
    await asyncio.sleep(0)
    newer = held()
    with pytest.raises(SupersededError):
        await wait
    assert hooks.request_ids == {"u": "req-7"}
    newer.hold.future.set_result(shed(gate.submitted[-1]))
    await desk.wait(newer)
    assert hooks.request_ids == {}
