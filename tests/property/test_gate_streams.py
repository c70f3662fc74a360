"""Whatever Envoy sends, in whatever order: a clear answer or a clean end, and nothing leaks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

import grpc
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy_server.core.request import Request
from tests.support.ext_proc_messages import (
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.support.fake_gate import FakeGate, admitted, shed
from tests.support.services import services_of


@dataclass
class FakeStream:
    """A grpc call: `say` and `end` feed it, `read` and `abort` are what the handler sees."""

    said: asyncio.Queue[object] = field(default_factory=asyncio.Queue)
    readers: int = 0
    status: grpc.StatusCode | None = None
    written: list[bytes] = field(default_factory=list)

    def end(self) -> None:
        """No more messages; every read from now on is EOF."""
        self.said.put_nowait(grpc.aio.EOF)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-policy-uid", "uid-1"), ("x-policy-node", "n"))

    async def read(self) -> object:
        self.readers += 1
        assert self.readers == 1, "two readers on one stream"
        message = await self.said.get()
        if message is grpc.aio.EOF:
            self.end()
        self.readers -= 1
        return message

    async def write(self, answer: bytes) -> None:
        self.written.append(answer)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert code is not grpc.StatusCode.OK
        assert details
        self.status = code
        raise grpc.aio.AbortError(details)


class Do(Enum):
    """What happens next, beside messages."""

    EOF = "eof"
    RESET = "reset"
    ADMIT = "admit"
    SHED = "shed"
    TAKE_OVER = "take over"
    CLOSE = "close"


MESSAGES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"",
            request_headers().SerializeToString(),
            request_headers(headers={"upgrade": "websocket"}).SerializeToString(),
            request_headers(headers={":method": "GET"}).SerializeToString(),
            request_headers("x" * 65536, {"x-tenant-id": "\x00" * 999}).SerializeToString(),
            response_headers("504", observed=False).SerializeToString(),
            response_headers("200", observed=False).SerializeToString(),
            response_headers().SerializeToString(),
            response_body(b'data: {"content":"x"}\n\n', last=True).SerializeToString(),
            response_trailers().SerializeToString(),
        ]
    ),
)
GOVERNED = request_headers().SerializeToString()
HEAD = response_headers("200", observed=False).SerializeToString()
FIRST = st.one_of(st.just(GOVERNED), st.just(GOVERNED), MESSAGES, st.sampled_from(Do))
TURNS = st.integers(0, 3)
Step = tuple[bytes | Do, int]
"""What happens, and how many turns of the loop pass before the next thing does."""
STEPS = st.builds(
    lambda first, rest: [first, *rest],
    st.tuples(FIRST, TURNS),
    st.lists(st.tuples(st.one_of(st.sampled_from(Do), MESSAGES), TURNS), max_size=8),
)


def turn_to(gate: FakeGate, stream: FakeStream, task: asyncio.Task[object], step: Do) -> None:
    waiting = [request for request in gate.submitted[-1:] if request.uid in gate.places]
    if step is Do.EOF:
        stream.end()
    elif step is Do.RESET:
        task.cancel()
        stream.end()
    elif step is Do.CLOSE:
        gate.closing.set()
    for request in waiting:
        if step is Do.ADMIT:
            gate.resolve(request.uid, admitted(request, wait_s=1.0))
        elif step is Do.SHED:
            gate.resolve(request.uid, shed(request))
        elif step is Do.TAKE_OVER:
            gate.submit(request)
            gate.places.pop(request.uid, None)


async def play(first: str, steps: list[Step], single: bool = False) -> None:
    def decide(request: Request) -> object:
        return {"admit": admitted, "shed": shed}.get(first, lambda _: None)(request)

    gate = FakeGate(decide=decide)  # type: ignore[arg-type]
    desk, services = services_of(gate)
    handing_back = asyncio.create_task(desk.hand_back_holds())
    stream, left_before = FakeStream(), 0
    process = services.stream.process if single else services.gate.process
    task: asyncio.Task[object] = asyncio.create_task(process(None, stream))  # type: ignore[arg-type]
    for step, turns in steps:
        if isinstance(step, bytes):
            stream.said.put_nowait(step)
        else:
            turn_to(gate, stream, task, step)
        if not gate.closing.is_set() or step is Do.CLOSE:
            left_before = len(gate.left)
        for _ in range(turns):
            await asyncio.sleep(0)
    stream.end()
    async with asyncio.timeout(5):
        (result,) = await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
    handing_back.cancel()
    assert desk.holding == 0
    if single:
        check_single(gate, stream, result, left_before)
    else:
        check(gate, stream, result, left_before)


def check_places(gate: FakeGate, left_before: int) -> None:
    if gate.closing.is_set():
        assert len(gate.left) == left_before, "a place that was handed back is kept"
    else:
        assert not gate.places, "a place nobody waits on"


def check_single(gate: FakeGate, stream: FakeStream, result: object, left_before: int) -> None:
    """The stream carries its lease: with it over, no lease is left, and each ended once."""
    ends = asyncio.CancelledError | grpc.aio.AbortError
    assert result is None or isinstance(result, ends), result
    check_places(gate, left_before)
    assert not gate.leases
    ended = [uid for uid, _ in gate.completed] + gate.unsent
    assert len(ended) == len(set(ended)) <= 1


def check(gate: FakeGate, stream: FakeStream, result: object, left_before: int) -> None:
    answered = isinstance(result, bytes)
    assert answered or isinstance(result, asyncio.CancelledError | grpc.aio.AbortError), result
    assert answered == (stream.status is None) or isinstance(result, asyncio.CancelledError)
    check_places(gate, left_before)
    if gate.leases:  # told, so the access log will end it
        assert answered
        assert b"x-policy-observe" in result  # type: ignore[operator]


@settings(max_examples=600, deadline=None)
@example("hold", [(GOVERNED, 3), (Do.ADMIT, 0), (Do.RESET, 1)])
@example("hold", [(GOVERNED, 3), (Do.ADMIT, 0), (Do.EOF, 3)])
@example("hold", [(GOVERNED, 3), (Do.CLOSE, 0), (Do.RESET, 1)])
@example("hold", [(GOVERNED, 3), (Do.EOF, 0), (Do.ADMIT, 0)])
@example("hold", [(GOVERNED, 3), (Do.TAKE_OVER, 0), (Do.RESET, 0)])
@given(st.sampled_from(["hold", "hold", "admit", "shed"]), STEPS)
def test_any_sequence_ends_cleanly(first: str, steps: list[Step]) -> None:
    asyncio.run(play(first, steps))


@settings(max_examples=300, deadline=None)
@example("hold", [(GOVERNED, 3), (Do.ADMIT, 0), (Do.RESET, 1)])
@example("hold", [(GOVERNED, 3), (Do.ADMIT, 0), (Do.EOF, 3)])
@example("hold", [(GOVERNED, 3), (Do.EOF, 0), (Do.ADMIT, 0)])
@example("hold", [(GOVERNED, 3), (Do.TAKE_OVER, 0), (Do.RESET, 0)])
@example("admit", [(GOVERNED, 3), (HEAD, 3), (Do.RESET, 1)])
@example("admit", [(GOVERNED, 0), (Do.RESET, 0)])
@given(st.sampled_from(["hold", "hold", "admit", "shed"]), STEPS)
def test_any_single_stream_ends_cleanly(first: str, steps: list[Step]) -> None:
    asyncio.run(play(first, steps, single=True))
