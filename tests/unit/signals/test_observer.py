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


def of_choice(index: int, *, index_last: bool = False) -> dict[str, object]:
    told = {"index": index, "delta": {"content": "a"}}
    return {"choices": [dict(reversed(told.items())) if index_last else told]}


@pytest.mark.parametrize("index_last", [False, True])
def test_the_choices_of_one_step_are_one_token(index_last: bool) -> None:
    parser = SseParser()
    step = sse(*(of_choice(i, index_last=index_last) for i in range(8)))
    assert parser.feed(step) + parser.feed(step) == 2
    assert parser.usage() == Usage(0, 0, choices=8)  # so much of it is known without
    parser.feed(sse({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 16}}))
    assert parser.usage() == Usage(9, 16, choices=8)


def test_several_choices_in_one_event_are_one_token_as_well() -> None:
    event = {"choices": [{"index": i, "text": "a"} for i in range(4)]}
    parser = SseParser()
    assert parser.feed(sse(event, event)) == 2


def test_the_choice_that_comes_first_is_counted_whatever_its_number() -> None:
    parser = SseParser()
    assert parser.feed(sse(*(of_choice(i) for i in (2, 0, 1, 2, 0, 1)))) == 2


def test_tool_calls_content_blocks_and_output_items_follow_each_other() -> None:
    calls = [chat({"tool_calls": [{"index": i, "function": {"arguments": "{"}}]}) for i in range(3)]
    blocks = [
        anthropic("content_block_delta", index=i, delta={"type": "text_delta", "text": "a"})
        for i in range(3)
    ]
    items = [
        {"type": "response.output_text.delta", "output_index": i, "content_index": 1, "delta": "a"}
        for i in range(3)
    ]
    assert SseParser().feed(sse(*calls, *blocks, *items)) == 9


@pytest.mark.parametrize("index", ['"7"', "7.5", "9999999999", "[7]", "7,]"])
def test_an_odd_number_of_a_choice_costs_no_token(index: str) -> None:
    line = f'data: {{"choices":[{{"index":{index},"delta":{{"content":"a"}}}}]}} "index":1\n'
    assert SseParser().feed(line.encode()) == 1


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_end_as_the_standard_allows(end: bytes, mark: bytes) -> None:
    body = mark + sse(chat({"content": "a"}), chat({"content": "b"})).replace(b"\n", end)
    for size in (1, 7, len(body)):
        parser = SseParser()
        parts = [body[i : i + size] for i in range(0, len(body), size)]
        assert sum(map(parser.feed, parts)) == 2


@pytest.mark.parametrize("size", [1, 7, 4000])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_choices_of_a_whole_answer_are_counted(size: int, separators: tuple[str, str]) -> None:
    text = '"finish_reason": ' + "x" * KEPT_TAIL_BYTES
    choices = [{"index": i, "text": text, "finish_reason": "finish_reason"} for i in range(3)]
    usage = {"prompt_tokens": 9, "completion_tokens": 12}
    body = json.dumps({"choices": choices, "usage": usage}, separators=separators).encode()
    parser = JsonParser()
    for i in range(0, len(body), size):
        parser.feed(body[i : i + size])
    assert parser.usage() == Usage(9, 12, choices=3)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ('"completion_tokens": 999999999999', None),
        ('"completion_tokens": 1048577', None),
        ('"completion_tokens": -5', None),
        ('"completion_tokens": 1e9', Usage(0, 1)),
        ('"prompt_tokens": 99999999999999999999, "completion_tokens": 5', Usage(0, 5)),
        ('"prompt_tokens": -7, "completion_tokens": 5', Usage(0, 5)),
    ],
)
def test_counts_that_cannot_be_true_are_none(told: str, usage: Usage | None) -> None:
    for parser, body in (
        (JsonParser(), f'{{"usage": {{{told}}}}}'),
        (SseParser(), f'data: {{"usage": {{{told}}}}}\n'),
    ):
        parser.feed(body.encode())
        assert parser.usage() == usage
