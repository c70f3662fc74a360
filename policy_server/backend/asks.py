"""Reads request bodies of the supported APIs into what the engine and the answers need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

DEFAULT_MAX_TOKENS = 100
CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 576
"""What one image part costs: a common vision encoder's patch count (24 × 24)."""

Json = dict[str, object]


class Api(Enum):
    """The API spoken on a path."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    MESSAGES = "messages"


class BadRequestError(ValueError):
    """The body is not what the API takes; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, read. Tokens ≥ 1; `max_tokens` is exactly the answer's length, 0 = embedding.

    `limited` is True when the client set the length (then finish_reason is "length").
    """

    api: Api
    model: str
    prompt_tokens: int
    max_tokens: int
    limited: bool = False
    stream: bool = False
    include_usage: bool = False
    inputs: tuple[str, ...] = ()
    base64: bool = False


def read_ask(api: Api, body: object, default_model: str) -> Ask:
    """Read a decoded JSON body. Raises BadRequestError with one line for the client."""
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    model = body.get("model", default_model)
    if not isinstance(model, str):
        raise BadRequestError("model must be a string")
    if api is Api.EMBEDDING:
        inputs = _embedding_inputs(body.get("input"))
        tokens = sum(_tokens(len(text)) for text in inputs)
        base64 = body.get("encoding_format") == "base64"
        return Ask(api, model, tokens, 0, inputs=inputs, base64=base64)
    length = _length(body)
    options = body.get("stream_options")
    return Ask(
        api,
        model,
        prompt_tokens=_prompt_tokens(api, body),
        max_tokens=DEFAULT_MAX_TOKENS if length is None else length,
        limited=length is not None,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _length(body: Json) -> int | None:
    value = body.get("max_completion_tokens")
    if value is None:
        value = body.get("max_tokens")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequestError(f"max_tokens must be a whole number of at least 1, not {value!r}")
    return value


def _prompt_tokens(api: Api, body: Json) -> int:
    if api is Api.COMPLETION:
        prompt = body.get("prompt")
        if prompt is None:
            raise BadRequestError("prompt is missing")
        return _content_tokens(prompt)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list with at least one message")
    total = _content_tokens(body.get("system")) if body.get("system") else 0
    for message in messages:
        if not isinstance(message, dict):
            raise BadRequestError("each message must be an object")
        total += _content_tokens(message.get("content"))
    return max(1, total)


def _content_tokens(content: object) -> int:
    """Tokens of a text, of token ids, or of a list of texts and content parts."""
    if isinstance(content, str):
        return _tokens(len(content))
    if isinstance(content, list):
        return max(1, sum(_part_tokens(part) for part in content))
    return 1


def _part_tokens(part: object) -> int:
    if isinstance(part, int):  # a token id
        return 1
    if not isinstance(part, dict):
        return _content_tokens(part)
    text = part.get("text")
    if isinstance(text, str):
        return _tokens(len(text))
    kind = part.get("type")
    return IMAGE_TOKENS if isinstance(kind, str) and "image" in kind else 1


def _embedding_inputs(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(item, int) for item in value):
            return (repr(value),)
        return tuple(item if isinstance(item, str) else repr(item) for item in value)
    raise BadRequestError("input must be a text or a list of texts")


def _tokens(chars: int) -> int:
    return max(1, math.ceil(chars / CHARS_PER_TOKEN))
