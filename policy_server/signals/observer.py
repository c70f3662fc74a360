"""Reads observed answers: tokens of a streamed one, `usage` of any.

Counting is by bytes, not by JSON: one search per event, a few microseconds per chunk, because
every chunk of every observed answer comes through here. One event that carries content counts as
one token; `usage`, where the answer has it, tells the exact numbers at the end. Quotes inside a
JSON string are escaped, so a key that is searched with its quotes is never text of the answer.

What is told are steps of the engine, for they show its pace. An answer of several choices (`n`,
several prompts) has one event per choice in each step, so only those of one choice are counted,
the first that is seen; `usage` sums up all choices, so their number goes with it. A token count
that cannot be true is none.

Known shapes: OpenAI chat completions, completions and responses, Anthropic messages.
"""

from __future__ import annotations

import json
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
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*([0-9]{1,24})')
_CACHED = re.compile(rb'"cache_(?:creation|read)_input_tokens"\s*:\s*([0-9]{1,24})')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*([0-9]{1,24})')
MAX_PROMPT_TOKENS = 1 << 24  # more than any model takes
MAX_COMPLETION_TOKENS = 1 << 20  # of one choice
MAX_CHOICES = 1 << 12
_SUMMARY = re.compile(rb'"type"\s*:\s*"response\.[a-z_.]*(?<!\.delta)"')
"""Events of OpenAI's responses API that repeat text already counted as deltas."""
_NOT_FIRST = re.compile(rb'"index"\s*:\s*[1-9]')
"""In an event with `choices`: another choice than the first, or the second tool call of one."""
_CHOICE_END = re.compile(rb'"finish_reason"\s{0,4}:')
_CHOICE_END_BYTES = 20  # so long at most
_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Server-sent events in chunks cut anywhere. State is bounded by MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self._first_usage = b""
        self._last_usage = b""
        self._choice: int | None = None  # whose events are counted
        self._choices = 1

    def feed(self, chunk: bytes) -> int:
        """Content events that end in this chunk, of one choice."""
        if b"\r" in chunk:  # ends a line as well, alone or before a line feed
            chunk = chunk.replace(b"\r", b"\n")
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
        """The last counts seen; Anthropic tells the prompt's first and the answer's last. Without
        any the number of choices is worth telling, when there are several."""
        found = _usage_in(self._first_usage + self._last_usage, self._choices)
        return found or (Usage(0, 0, self._choices) if self._choices > 1 else None)

    def _line(self, line: bytes) -> int:
        if not line.removeprefix(_BOM).startswith(b"data:"):
            return 0
        if b'_tokens"' in line:
            if self._first_usage:
                self._last_usage = line
            else:
                self._first_usage = line
        if _CONTENT.search(line) is None:
            return 0
        if b'"response.' in line and _SUMMARY.search(line):
            return 0
        return int(self._counts(line))

    def _counts(self, line: bytes) -> bool:
        """Whether this event is of the choice that is counted."""
        told = _indexes(line) if b'"choices"' in line and _NOT_FIRST.search(line) else [0]
        if not told:
            return True
        self._choices = max(self._choices, 1 + max(told))
        if self._choice is None:
            self._choice = told[0]
        return self._choice in told

    def _skip(self, chunk: bytes) -> int:
        """Go on after the line that was too long."""
        _, found, rest = chunk.partition(b"\n")
        self._skipping = not found
        return self.feed(rest) if found else 0


class JsonParser:
    """A plain JSON answer: no tokens in time, only `usage`, read from the end of the body."""

    def __init__(self) -> None:
        self._tail = b""
        self._choices = 0

    def feed(self, chunk: bytes) -> int:
        """No token to count: all come at once."""
        seam = self._tail[-_CHOICE_END_BYTES:]
        ends = _CHOICE_END.finditer(seam + chunk)
        self._choices += sum(end.end() > len(seam) for end in ends)
        self._tail = (self._tail + chunk)[-KEPT_TAIL_BYTES:]
        return 0

    def finish(self) -> int:
        """Nothing to count."""
        return 0

    def usage(self) -> Usage | None:
        """The counts of the whole answer."""
        start = self._tail.rfind(b'"usage"')
        return _usage_in(self._tail[start:], max(1, self._choices)) if start >= 0 else None


def parser_for(content_type: str) -> SseParser | JsonParser | None:
    """The parser for bodies of this type; None when such a body tells nothing."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return SseParser()
    return JsonParser() if kind == "application/json" else None


def _indexes(line: bytes) -> list[int]:
    """The choices that an event is of; none when it can't be read."""
    try:
        event = json.loads(line[line.index(b":") + 1 :])
        told = [choice["index"] for choice in event["choices"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return [index for index in told if type(index) is int and 0 <= index < MAX_CHOICES]


def _usage_in(text: bytes, choices: int) -> Usage | None:
    prompt, completion = _PROMPT.findall(text), _COMPLETION.findall(text)
    if not prompt and not completion:
        return None
    cached = sum(map(int, _CACHED.findall(text[text.rfind(b'"input_tokens"') :])))
    asked, answered = _last(prompt) + cached, _last(completion)
    if answered > choices * MAX_COMPLETION_TOKENS:
        return None
    return Usage(asked if asked <= MAX_PROMPT_TOKENS else 0, answered, choices)


def _last(numbers: list[bytes]) -> int:
    return int(numbers[-1]) if numbers else 0
