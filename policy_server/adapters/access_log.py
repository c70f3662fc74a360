"""Envoy's access log service: ends leases, keeps long ones alive, carries load reports.

One stream per Envoy, open for as long as that Envoy lives; an entry that cannot be understood
costs itself only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from policy_server.adapters.log_entry import EntryKind, LogEntry, read_entry
from policy_server.adapters.mend import mended
from policy_server.adapters.ports import Gate, ReportReader
from policy_server.adapters.protos import (
    DecodeError,
    HTTPAccessLogEntry,
    StreamAccessLogsMessage,
    StreamAccessLogsResponse,
    wire,
)
from policy_server.adapters.streams import NODE_KEY, Context, metadata_value, read
from policy_server.core.samples import Completion


@dataclass(slots=True)
class LogCounts:
    """What came in: entries in all, entries without a uid, messages that are none."""

    entries: int = 0
    anonymous: int = 0
    broken: int = 0


class AccessLog:
    """The `AccessLogService`."""

    def __init__(self, gate: Gate, read_report: ReportReader) -> None:
        self.counts = LogCounts()
        self._gate = gate
        self._read_report = read_report

    async def stream(self, _messages: object, context: Context) -> bytes:
        """One Envoy's log, until it ends. There is no other answer than its end."""
        node = metadata_value(context, NODE_KEY)
        while (raw := await read(context)) is not None:
            message = _parse(raw)
            if message is None:
                self.counts.broken += 1
                continue
            node = node or message.identifier.node.id  # only the first message has it
            self._gate.node_alive(node)
            for entry in message.http_logs.log_entry:
                self._take(entry, node)
        return wire(StreamAccessLogsResponse())

    def _take(self, raw: HTTPAccessLogEntry, node: str) -> None:
        self.counts.entries += 1
        entry = read_entry(raw)
        if not entry.uid:
            self.counts.anonymous += 1
        elif entry.kind is EntryKind.HEARTBEAT:
            self._gate.heartbeat(entry.uid, node)
        elif entry.kind is EntryKind.END:
            self._report(entry)
            self._gate.complete(entry.uid, entry.completion)

    def _report(self, entry: LogEntry) -> None:
        """The engine's own word; before the end, while the lease still tells the pool."""
        report = self._read_report(entry.headers) if entry.headers else None
        if report is not None:
            aged = replace(report, age_s=_since_headers(entry.completion))
            self._gate.load_report_for(entry.uid, entry.upstream, aged)


def _since_headers(completion: Completion) -> float:
    """Seconds since the answer's headers, which carried the report: all of a streamed answer."""
    if completion.first_byte_s is None or completion.last_byte_s is None:
        return 0.0
    return max(0.0, completion.last_byte_s - completion.first_byte_s)


def _parse(raw: bytes) -> StreamAccessLogsMessage | None:
    try:
        return StreamAccessLogsMessage.FromString(raw)
    except DecodeError:
        return _parse_mended(raw)


def _parse_mended(raw: bytes) -> StreamAccessLogsMessage | None:
    """A client's odd bytes must not cost the leases of everybody in the same message."""
    try:
        return StreamAccessLogsMessage.FromString(mended(raw, StreamAccessLogsMessage.DESCRIPTOR))
    except DecodeError:
        return None
