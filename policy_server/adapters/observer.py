"""The observer: a second ext_proc filter shows a sample of the answers as they pass.

It runs in Envoy's observability mode, so nothing it says or fails to say touches the answer. A
stream ends as soon as there is nothing left to learn (no 2xx, no body that can be read, end of
the body): Envoy then stops sending, which is most of what an observed answer costs.
"""

from __future__ import annotations

from collections.abc import Mapping

from policy_server.adapters.ext_proc_messages import (
    ASKS,
    UID_KEY,
    UPSTREAM_ADDRESS,
    attribute,
    headers_of,
    parse,
)
from policy_server.adapters.ports import AnswerParser, Gate, ParserFactory, ReportReader
from policy_server.adapters.protos import ProcessingRequest
from policy_server.adapters.streams import Context, metadata_value, read

WANTED = frozenset({":status", "content-type", "content-encoding"}) | ASKS
"""Asks too: they come here long before a streamed answer ends and is logged."""
NO_ANSWER = b""


class AnswerObserver:
    """Feeds the samples of observed answers to the gate."""

    def __init__(
        self, gate: Gate, parser_for: ParserFactory, read_report: ReportReader | None = None
    ) -> None:
        self._gate = gate
        self._parser_for = parser_for
        self._read_report = read_report

    async def follow(self, first: ProcessingRequest, context: Context) -> bytes:
        """Read one stream, which began with `first`, to its end."""
        uid = metadata_value(context, UID_KEY)
        parser: AnswerParser | None = None
        message: ProcessingRequest | None = first
        while message is not None and uid:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                found = headers_of(message.response_headers, WANTED)
                self._asks(uid, found, message)
                parser = self._parser_of(found)
                if parser is None:
                    self._gate.unreadable(uid)
                if parser is None or message.response_headers.end_of_stream:
                    return NO_ANSWER
            elif kind == "response_body" and parser is not None:
                body = message.response_body
                self._gate.tokens(uid, parser.feed(body.body))
                if body.end_of_stream:
                    break
            elif kind == "response_trailers":
                break
            raw = await read(context)
            message = parse(raw) if raw is not None else None
        if parser is not None and message is not None:  # the whole answer was seen
            self._finish(uid, parser)
        return NO_ANSWER

    def _asks(self, uid: str, headers: Mapping[str, str], message: ProcessingRequest) -> None:
        """Under the address that the log will name as well: the newest word of each engine counts.
        An Envoy that was not told to send it leaves all of them under no address."""
        if self._read_report is not None and not ASKS.isdisjoint(headers):
            report = self._read_report(headers)
            if report is not None:
                self._gate.load_report_for(uid, attribute(message, UPSTREAM_ADDRESS), report)

    def _parser_of(self, found: Mapping[str, str]) -> AnswerParser | None:
        """Only answers that succeeded tell how fast the engine is."""
        if found.get(":status", "")[:1] != "2":
            return None
        if found.get("content-encoding", "identity") != "identity":
            return None
        return self._parser_for(found.get("content-type", ""))

    def _finish(self, uid: str, parser: AnswerParser) -> None:
        if last := parser.finish():
            self._gate.tokens(uid, last)
        usage = parser.usage()
        if usage is not None:
            self._gate.usage(uid, usage)
