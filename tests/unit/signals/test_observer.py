"""What an observed answer tells."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.core.samples import Usage
from policy_server.signals.observer import (
    KEPT_TAIL_BYTES,
    MAX_LINE_BYTES,
    JsonParser,
    SseParser,
    parser_for,
)


def sse(*events: object, separators: tuple[str, str] | None = None) -> bytes:
    lines = [
        "data: " + (e if isinstance(e, str) else json.dumps(e, separators=separators))
        for e in events
    ]
    return "".join(line + "\n\n" for line in lines).encode()


def chat(delta: dict[str, object], **more: object) -> dict[str, object]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}], **more}


def anthropic(kind: str, **more: object) -> str:
    return json.dumps({"type": kind, **more})


OPENAI_CHAT = sse(
    chat({"role": "assistant", "content": ""}),
    chat({"content": "Hel"}),
    chat({"content": 'say "content":"x" lo\n'}),
    chat({"reasoning_content": "hm"}),
    chat({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]}),
    chat({"content": None}),
    chat({}, usage=None),
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
    "[DONE]",
)
OPENAI_TEXT = sse({"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}, "[DONE]")
OPENAI_RESPONSES = sse(
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_text.delta", "delta": "Hi"},
    {"type": "response.output_text.delta", "delta": '"response.'},
    {"type": "response.output_text.done", "text": "Hi there"},
    {"type": "response.completed", "response": {
        "output": [{"text": "Hi there"}], "usage": {"input_tokens": 3, "output_tokens": 2}}},
)  # fmt: skip
ANTHROPIC = "".join(
    f"event: x\r\ndata: {event}\r\n\r\n"
    for event in (
        anthropic("message_start", message={"content": [], "usage": {
            "input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 1}}),
        anthropic("content_block_start", content_block={"type": "text", "text": ""}),
        anthropic("ping"),
        anthropic("content_block_delta", delta={"type": "text_delta", "text": "Hi"}),
        anthropic("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}),
        anthropic("content_block_stop"),
        anthropic("message_delta", delta={"stop_reason": "end"}, usage={"output_tokens": 12}),
        anthropic("message_stop"),
    )
).encode()  # fmt: skip

STREAMS = [
    (OPENAI_CHAT, 4, Usage(9, 4)),
    (OPENAI_TEXT, 1, None),
    (OPENAI_RESPONSES, 2, Usage(3, 2)),
    (ANTHROPIC, 2, Usage(25, 12)),
]


@pytest.mark.parametrize(("body", "tokens", "usage"), STREAMS)
def test_streams_of_the_known_kinds(body: bytes, tokens: int, usage: Usage | None) -> None:
    parser = SseParser()
    assert parser.feed(body) + parser.finish() == tokens
    assert parser.usage() == usage


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 900)))
def test_where_chunks_are_cut_does_not_matter(
    stream: tuple[bytes, int, Usage | None], cuts: list[int]
) -> None:
    body, tokens, usage = stream
    edges = [0, *sorted(cuts), len(body)]
    parser = SseParser()
    counted = sum(parser.feed(body[a:b]) for a, b in itertools.pairwise(edges))
    assert counted + parser.finish() == tokens
    assert parser.usage() == usage


def test_compact_json_reads_the_same() -> None:
    parser = SseParser()
    assert parser.feed(sse(chat({"content": "a"}), separators=(",", ":"))) == 1


def test_a_last_event_without_its_line_feed_counts() -> None:
    parser = SseParser()
    assert parser.feed(sse(chat({"content": "a"})).rstrip()) == 0
    assert parser.finish() == 1
    assert parser.finish() == 0


def test_a_giant_line_is_one_event_in_bounded_memory() -> None:
    parser = SseParser()
    tokens = parser.feed(b'data: {"content": "a')
    for _ in range(40):
        tokens += parser.feed(b"x" * (MAX_LINE_BYTES // 8))
        assert len(parser._rest) <= MAX_LINE_BYTES
    tokens += parser.feed(b'"}\n\n' + sse(chat({"content": "b"})))
    assert tokens == 2


@pytest.mark.parametrize("size", [0, KEPT_TAIL_BYTES * 3])
def test_plain_json_tells_its_usage_at_the_end(size: int) -> None:
    body = json.dumps(
        {
            "choices": [{"message": {"content": '"usage": {"prompt_tokens": 1}' + "x" * size}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4},
        }
    ).encode()
    parser = JsonParser()
    assert sum(parser.feed(body[i : i + 5000]) for i in range(0, len(body), 5000)) == 0
    assert parser.finish() == 0
    assert parser.usage() == Usage(9, 4)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"usage": null}', b"\xff\x00", b'{"usage": {"a": 1}}']
)
def test_json_without_usage(body: bytes) -> None:
    parser = JsonParser()
    parser.feed(body)
    assert parser.usage() is None


@pytest.mark.parametrize(
    ("content_type", "parser"),
    [
        ("text/event-stream; charset=utf-8", SseParser),
        ("Application/JSON", JsonParser),
        ("application/octet-stream", type(None)),
        ("", type(None)),
    ],
)
def test_the_content_type_picks_the_parser(content_type: str, parser: type) -> None:
    assert type(parser_for(content_type)) is parser


@given(st.lists(st.binary()))
def test_no_bytes_raise(chunks: list[bytes]) -> None:
    for parser in (SseParser(), JsonParser()):
        assert sum(map(parser.feed, chunks)) + parser.finish() >= 0
        parser.usage()
