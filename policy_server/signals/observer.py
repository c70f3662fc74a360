"""Reads observed answers: tokens of a streamed one, `usage` of any.

Counting is by bytes, not by JSON: one search per event, a few microseconds per chunk, because
every chunk of every observed answer comes through here. One event that carries content counts as
one token; `usage`, where the answer has it, tells the exact numbers at the end. Quotes inside a
JSON string are escaped, so a key that is searched with its quotes is never text of the answer.

Known shapes: OpenAI chat completions, completions and responses, Anthropic messages.
"""

from __future__ import annotations

import re

from policy_server.core.samples import Usage

MAX_LINE_BYTES = 64 * 1024
"""An event is a few hundred bytes; what follows this much of one line is skipped."""
KEPT_TAIL_BYTES = 64 * 1024
"""The end of a plain answer, where `usage` is."""

_CONTENT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments|partial_json|thinking|refusal|delta)"'
    rb'\s*:\s*"(?!")'
)
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*([0-9]{1,12})')
_CACHED = re.compile(rb'"cache_(?:creation|read)_input_tokens"\s*:\s*([0-9]{1,12})')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*([0-9]{1,12})')
_SUMMARY = re.compile(rb'"type"\s*:\s*"response\.[a-z_.]*(?<!\.delta)"')
"""Events of OpenAI's responses API that repeat text already counted as deltas."""


class SseParser:
    """Server-sent events in chunks cut anywhere. State is bounded by MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self._first_usage = b""
        self._last_usage = b""

    def feed(self, chunk: bytes) -> int:
        """Content events that end in this chunk."""
        if self._skipping:
            return self._skip(chunk)
        *lines, rest = (self._rest + chunk).split(b"\n")
        tokens = sum(map(self._line, lines))
        if len(rest) > MAX_LINE_BYTES:
            tokens += self._line(rest)
            rest, self._skipping = b"", True
        self._rest = rest
        return tokens

    def finish(self) -> int:
        """Content events in a last line that no line feed ends."""
        rest, self._rest = self._rest, b""
        return self._line(rest)

    def usage(self) -> Usage | None:
        """The last counts seen; Anthropic tells the prompt's first and the answer's last."""
        return _usage_in(self._first_usage + self._last_usage)

    def _line(self, line: bytes) -> int:
        if not line.startswith(b"data:"):
            return 0
        if b'_tokens"' in line:
            if self._first_usage:
                self._last_usage = line
            else:
                self._first_usage = line
        if _CONTENT.search(line) is None:
            return 0
        return 0 if b'"response.' in line and _SUMMARY.search(line) else 1

    def _skip(self, chunk: bytes) -> int:
        """Go on after the line that was too long."""
        _, found, rest = chunk.partition(b"\n")
        self._skipping = not found
        return self.feed(rest) if found else 0


class JsonParser:
    """A plain JSON answer: no tokens in time, only `usage`, read from the end of the body."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> int:
        """Nothing to count: all tokens come at once."""
        self._tail = (self._tail + chunk)[-KEPT_TAIL_BYTES:]
        return 0

    def finish(self) -> int:
        """Nothing to count."""
        return 0

    def usage(self) -> Usage | None:
        """The counts of the whole answer."""
        start = self._tail.rfind(b'"usage"')
        return _usage_in(self._tail[start:]) if start >= 0 else None


def parser_for(content_type: str) -> SseParser | JsonParser | None:
    """The parser for bodies of this type; None when such a body tells nothing."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return SseParser()
    return JsonParser() if kind == "application/json" else None


def _usage_in(text: bytes) -> Usage | None:
    prompt, completion = _PROMPT.findall(text), _COMPLETION.findall(text)
    if not prompt and not completion:
        return None
    cached = sum(map(int, _CACHED.findall(text[text.rfind(b'"input_tokens"') :])))
    return Usage(
        prompt_tokens=_last(prompt) + cached,
        completion_tokens=_last(completion),
    )


def _last(numbers: list[bytes]) -> int:
    return int(numbers[-1]) if numbers else 0
