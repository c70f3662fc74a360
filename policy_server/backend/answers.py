"""The bytes of each answer. A stream's bytes are built once: every token is the same frame.

So a step costs one write per stream and no encoding. The shapes are vLLM's: on a chat the role
comes with the first token, the finish reason with the last one, `usage` in a chunk of its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

from policy_server.backend.asks import Api, Ask

ANSWER_TEXT = " tok"
EMBEDDING_SIZE = 384
DONE = "data: [DONE]\n\n"

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Frames:
    """Bytes on the wire: `first` goes before the first token, `last` holds the last and the end."""

    first: bytes
    token: bytes
    last: bytes


def stream_frames(ask: Ask, answer_id: str, created: int, chunked: bool) -> Frames:
    """Frames of a streamed answer; `chunked` wraps each in HTTP/1.1 chunked encoding."""
    build = _STREAMS[ask.api]
    first, token, last = build(ask, answer_id, created)
    wrap = _http_chunk if chunked else bytes
    return Frames(wrap(first.encode()), wrap(token.encode()), wrap(last.encode()))


def plain_body(ask: Ask, answer_id: str, created: int) -> bytes:
    """Body of an answer that is not streamed."""
    return _compact(_BODIES[ask.api](ask, answer_id, created)).encode()


def error_body(api: Api | None, status: int, kind: str, message: str) -> bytes:
    """Error object in the shape that the path's clients expect."""
    if api is Api.MESSAGES:
        error: Json = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return _compact(error).encode()


def embedding(text: str) -> list[float]:
    """A unit vector that depends on nothing but the text."""
    digest = hashlib.shake_256(text.encode()).digest(2 * EMBEDDING_SIZE)
    values = [value / 32768 for value in struct.unpack(f"<{EMBEDDING_SIZE}h", digest)]
    norm = sum(value * value for value in values) ** 0.5 or 1.0
    return [round(value / norm, 8) for value in values]


def _chat_stream(ask: Ask, answer_id: str, created: int) -> tuple[str, str, str]:
    head = _head(ask, answer_id, created, "chat.completion.chunk")

    def chunk(delta: Json, finish: str | None = None) -> str:
        choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data(head | {"choices": [choice]})

    last = chunk({"content": ANSWER_TEXT}, _finish(ask)) + _stream_end(ask, head)
    return chunk({"role": "assistant", "content": ""}), chunk({"content": ANSWER_TEXT}), last


def _completion_stream(ask: Ask, answer_id: str, created: int) -> tuple[str, str, str]:
    head = _head(ask, answer_id, created, "text_completion")

    def chunk(finish: str | None = None) -> str:
        choice: Json = {"index": 0, "text": ANSWER_TEXT, "logprobs": None, "finish_reason": finish}
        return _data(head | {"choices": [choice]})

    return "", chunk(), chunk(_finish(ask)) + _stream_end(ask, head)


def _messages_stream(ask: Ask, answer_id: str, _created: int) -> tuple[str, str, str]:
    message = _message(ask, answer_id, [], None, 0)
    block: Json = {"type": "text", "text": ""}
    start: Json = {"type": "content_block_start", "index": 0, "content_block": block}
    first = _event({"type": "message_start", "message": message}) + _event(start)
    delta: Json = {"type": "text_delta", "text": ANSWER_TEXT}
    token = _event({"type": "content_block_delta", "index": 0, "delta": delta})
    end: Json = {
        "type": "message_delta",
        "delta": {"stop_reason": _stop_reason(ask), "stop_sequence": None},
        "usage": {"input_tokens": ask.prompt_tokens, "output_tokens": ask.max_tokens},
    }
    stop = _event({"type": "content_block_stop", "index": 0})
    return first, token, token + stop + _event(end) + _event({"type": "message_stop"})


def _chat_body(ask: Ask, answer_id: str, created: int) -> Json:
    message: Json = {"role": "assistant", "content": ANSWER_TEXT * ask.max_tokens}
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(ask)}
    head = _head(ask, answer_id, created, "chat.completion")
    return head | {"choices": [choice], "usage": _usage(ask)}


def _completion_body(ask: Ask, answer_id: str, created: int) -> Json:
    text = ANSWER_TEXT * ask.max_tokens
    choice: Json = {"index": 0, "text": text, "logprobs": None, "finish_reason": _finish(ask)}
    head = _head(ask, answer_id, created, "text_completion")
    return head | {"choices": [choice], "usage": _usage(ask)}


def _embedding_body(ask: Ask, answer_id: str, created: int) -> Json:
    data: list[Json] = []
    for index, text in enumerate(ask.inputs):
        vector: list[float] | str = embedding(text)
        if ask.base64:
            packed = struct.pack(f"<{EMBEDDING_SIZE}f", *vector)
            vector = base64.b64encode(packed).decode()
        data.append({"index": index, "object": "embedding", "embedding": vector})
    usage = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
    return _head(ask, answer_id, created, "list") | {"data": data, "usage": usage}


def _messages_body(ask: Ask, answer_id: str, _created: int) -> Json:
    content: list[Json] = [{"type": "text", "text": ANSWER_TEXT * ask.max_tokens}]
    return _message(ask, answer_id, content, _stop_reason(ask), ask.max_tokens)


def _message(ask: Ask, answer_id: str, content: list[Json], stop: str | None, out: int) -> Json:
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": ask.model,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": ask.prompt_tokens, "output_tokens": out},
    }


def _head(ask: Ask, answer_id: str, created: int, kind: str) -> Json:
    return {"id": answer_id, "object": kind, "created": created, "model": ask.model}


def _usage(ask: Ask) -> Json:
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + ask.max_tokens,
        "completion_tokens": ask.max_tokens,
    }


def _stream_end(ask: Ask, head: Json) -> str:
    if not ask.include_usage:
        return DONE
    return _data(head | {"choices": [], "usage": _usage(ask)}) + DONE


def _finish(ask: Ask) -> str:
    return "length" if ask.limited else "stop"


def _stop_reason(ask: Ask) -> str:
    return "max_tokens" if ask.limited else "end_turn"


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _data(value: Json) -> str:
    return f"data: {_compact(value)}\n\n"


def _event(value: Json) -> str:
    return f"event: {value['type']}\ndata: {_compact(value)}\n\n"


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


_STREAMS: dict[Api, Callable[[Ask, str, int], tuple[str, str, str]]] = {
    Api.CHAT: _chat_stream,
    Api.COMPLETION: _completion_stream,
    Api.MESSAGES: _messages_stream,
}

_BODIES: dict[Api, Callable[[Ask, str, int], Json]] = {
    Api.CHAT: _chat_body,
    Api.COMPLETION: _completion_body,
    Api.EMBEDDING: _embedding_body,
    Api.MESSAGES: _messages_body,
}
