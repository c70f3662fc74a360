"""The observer as Envoy feeds it."""

from __future__ import annotations

import grpc
import pytest

from policy_server.core.samples import Usage
from tests.grpc.conftest import Wired
from tests.support.ext_proc_messages import response_body, response_headers, response_trailers

TOKEN = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'


async def finished(call: grpc.aio.StreamStreamCall) -> bool:
    """Whether the server ended the stream by itself, cleanly."""
    while await call.read() is not grpc.aio.EOF:
        pass
    return await call.code() is grpc.StatusCode.OK


async def test_a_streamed_answer_is_timed_and_counted(wired: Wired) -> None:
    call = wired.process(x_policy_uid="uid-1")
    await call.write(response_headers())
    await call.write(response_body(TOKEN))
    await call.write(response_body(TOKEN[:20]))
    await call.write(response_body(TOKEN[20:] + USAGE))
    await call.write(response_body(b"data: [DONE]\n\n", last=True))
    assert await finished(call)
    assert wired.gate.observed == [
        ("tokens", "uid-1", 1),
        ("tokens", "uid-1", 1),
        ("usage", "uid-1", Usage(7, 2)),
    ]


async def test_trailers_end_an_answer(wired: Wired) -> None:
    call = wired.process(x_policy_uid="uid-1")
    await call.write(response_headers(content_type="application/json"))
    await call.write(response_body(b'{"usage":{"prompt_tokens":7,"completion_tokens":2}}'))
    await call.write(response_trailers())
    assert await finished(call)
    assert wired.gate.observed == [("usage", "uid-1", Usage(7, 2))]


async def test_an_answer_that_breaks_off_has_no_usage(wired: Wired) -> None:
    call = wired.process(x_policy_uid="uid-1")
    await call.write(response_headers())
    await call.write(response_body(TOKEN + USAGE))
    await call.done_writing()
    assert await finished(call)
    assert [what[0] for what in wired.gate.observed] == ["tokens"]


@pytest.mark.parametrize(
    ("status", "content_type"),
    [("500", "text/event-stream"), ("429", "application/json"), ("200", "image/png"), ("", "")],
)
async def test_what_tells_nothing_is_not_followed_and_told(
    wired: Wired, status: str, content_type: str
) -> None:
    call = wired.process(x_policy_uid="uid-1")
    await call.write(response_headers(status, content_type))
    assert await finished(call)
    assert wired.gate.observed == [("unreadable", "uid-1")]


async def test_an_answer_of_nobody_is_not_followed(wired: Wired) -> None:
    call = wired.process()
    await call.write(response_headers())
    assert await finished(call)
