"""The observer: a second ext_proc filter shows a sample of the answers as they pass.

It runs in Envoy's observability mode, so nothing it says or fails to say touches the answer. A
stream ends as soon as there is nothing left to learn (no 2xx, no body that can be read, end of
the body): Envoy then stops sending, which is most of what an observed answer costs.
"""

from __future__ import annotations

from policy_server.adapters.ext_proc_messages import headers_of, parse
from policy_server.adapters.ports import AnswerParser, Gate, ParserFactory
from policy_server.adapters.protos import HttpHeaders, ProcessingRequest
from policy_server.adapters.streams import Context, metadata_value, read

UID_KEY = "x-policy-uid"
WANTED = frozenset({":status", "content-type", "content-encoding"})
NO_ANSWER = b""


class AnswerObserver:
    """Feeds the samples of observed answers to the gate."""

    def __init__(self, gate: Gate, parser_for: ParserFactory) -> None:
        self._gate = gate
        self._parser_for = parser_for

    async def follow(self, first: ProcessingRequest, context: Context) -> bytes:
        """Read one stream, which began with `first`, to its end."""
        uid = metadata_value(context, UID_KEY)
        parser: AnswerParser | None = None
        message: ProcessingRequest | None = first
        while message is not None and uid:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                parser = self._parser_of(message.response_headers)
                if parser is None or message.response_headers.end_of_stream:
                    return NO_ANSWER
            elif kind == "response_body" and parser is not None:
                body = message.response_body
                self._tokens(uid, parser.feed(body.body))
                if body.end_of_stream:
                    break
            elif kind == "response_trailers":
                break
            raw = await read(context)
            message = parse(raw) if raw is not None else None
        if parser is not None and message is not None:  # the whole answer was seen
            self._finish(uid, parser)
        return NO_ANSWER

    def _parser_of(self, headers: HttpHeaders) -> AnswerParser | None:
        """Only answers that succeeded tell how fast the engine is."""
        found = headers_of(headers, WANTED)
        if found.get(":status", "")[:1] != "2":
            return None
        if found.get("content-encoding", "identity") != "identity":
            return None
        return self._parser_for(found.get("content-type", ""))

    def _tokens(self, uid: str, count: int) -> None:
        if count:
            self._gate.tokens(uid, count)

    def _finish(self, uid: str, parser: AnswerParser) -> None:
        self._tokens(uid, parser.finish())
        usage = parser.usage()
        if usage is not None:
            self._gate.usage(uid, usage)
