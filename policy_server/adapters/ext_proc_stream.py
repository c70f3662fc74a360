"""The single-stream wiring: one ext_proc stream from the request headers to the end of the answer.

Where the gate's stream ends with its answer and the access log tells the rest, this one stays
open: Envoy shows the response headers and closes the stream when the answer is over, so it needs
nothing else, and a lease ends in the moment in which its answer does. The price: a stream that
breaks breaks its answer. When the policy server dies, a fail-closed Envoy cuts what is in flight.

Life of a stream:

    refused, passed          answered; the stream ends with it
    a job                    its body is taken, then answered 202; see `ext_proc_dialogue`
    waits                    as with the gate: EOF or a local reply gives the place up
    admitted                 the lease is this stream's: whatever ends the stream ends the lease
      response headers       status, time to the first byte, load report
      EOF, trailers          the end: as the status says, of a gRPC call the one in its trailers;
                             without headers, the client is gone
    the server stops         waiting: handed back. Admitted: the stream ends with OK, which Envoy
                             takes for "no more to say", and the answer goes on without us

An open stream is the sign of life of its lease (`beat`), as the log's heartbeats are elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from policy_server.adapters.desk import Desk, Verdict, Words
from policy_server.adapters.ext_proc import Listener, Observer, listen, opening
from policy_server.adapters.ext_proc_dialogue import Call, Dialogue, say
from policy_server.adapters.ext_proc_messages import (
    TRAILERS,
    AnswerHead,
    StreamEncoder,
    answer_head,
    empty_answer,
    headers_of,
    parse,
)
from policy_server.adapters.grpc_status import told_status
from policy_server.adapters.job_intake import JobIntake
from policy_server.adapters.ports import ReportReader
from policy_server.adapters.protos import ProcessingRequest
from policy_server.adapters.streams import NODE_KEY, Context, metadata_value, read
from policy_server.core.events import Admitted
from policy_server.core.samples import Completion

WIRING_KEY = "x-policy-wiring"
"""Set by Envoys that run the observer beside the stream; see `envoy_config.stream`."""
BEAT_S = 5.0
FAILED_FROM = 500


@dataclass(slots=True, eq=False)
class _Lease:
    """An admitted request on its stream. `over` ends the stream; times are monotonic."""

    admitted: Admitted
    call: Call
    sent_at: float
    over: asyncio.Future[None]
    head: AnswerHead | None = None
    head_at: float = 0.0
    trailers: Mapping[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """Whose it is."""
        return self.admitted.request.uid


class SingleStream:
    """The `ExternalProcessor` service of the single-stream wiring."""

    def __init__(
        self,
        desk: Desk,
        observer: Observer,
        read_report: ReportReader,
        intake: JobIntake | None = None,
    ) -> None:
        self._desk = desk
        self._observer = observer
        self._read_report = read_report
        self._dialogue = Dialogue(desk, intake, Words(StreamEncoder()), self._carry)
        self._leases: set[_Lease] = set()

    async def process(self, _messages: object, context: Context) -> None:
        """One stream, from the request headers to the end of the answer."""
        message, kind = await opening(self._desk, context)
        if message.observability_mode:
            await self._observer.follow(message, context)
            return
        if kind != "request_headers":
            self._desk.counts.odd_starts += 1
            await say(context, empty_answer(kind))
            return
        observable = bool(metadata_value(context, WIRING_KEY))
        call = Call(context, metadata_value(context, NODE_KEY), observable)
        await self._dialogue.hold(message, call)

    # -- an answer under way ----------------------------------------------------------------------

    async def _carry(self, verdict: Verdict, call: Call, listener: Listener | None) -> None:
        """Tell the admission and stay with the request until it is over."""
        gate, admitted = self._desk.gate, verdict.lease
        if admitted is None:
            raise ValueError("nothing to carry")
        try:
            await call.context.write(verdict.answer)
        except (asyncio.CancelledError, grpc.aio.BaseError):
            gate.never_sent(admitted)
            raise
        over = asyncio.get_running_loop().create_future()
        lease = _Lease(admitted, call, self._desk.clock(), over)
        self._leases.add(lease)
        # The reader is a task of its own: a read can't be cancelled without ending the call.
        reader = asyncio.create_task(self._read_answer(lease, listener))
        try:
            await over
        finally:
            self._leases.discard(lease)
            if not over.done() or over.cancelled():  # the call died under us
                self._complete(lease)
        del reader

    async def _read_answer(self, lease: _Lease, listener: Listener | None) -> None:
        """Read to the end of the stream, then give the lease back, whatever ended it."""
        try:
            await self._read_on(lease, listener)
        finally:
            if not lease.over.done():
                self._complete(lease)
                lease.over.set_result(None)

    async def _read_on(self, lease: _Lease, listener: Listener | None) -> None:
        context = lease.call.context
        message = await (listener or listen(self._desk, None, context))
        while message is not None:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                self._take_head(lease, message)
            elif kind == "response_trailers":
                self._take_trailers(lease, message)
            if kind is not None and not await say(context, empty_answer(kind)):
                break
            if kind == "response_trailers" or message.response_headers.end_of_stream:
                break
            raw = await read(context)
            message = parse(raw) if raw is not None else None

    def _take_head(self, lease: _Lease, message: ProcessingRequest) -> None:
        lease.head, lease.head_at = answer_head(message), self._desk.clock()
        self._take_report(lease, lease.head.headers)

    def _take_trailers(self, lease: _Lease, message: ProcessingRequest) -> None:
        lease.trailers = headers_of(message.response_trailers, TRAILERS)
        self._take_report(lease, lease.trailers)

    def _take_report(self, lease: _Lease, headers: Mapping[str, str]) -> None:
        report = self._read_report(headers)
        if report is not None:
            upstream = lease.head.upstream if lease.head is not None else ""
            self._desk.gate.load_report_for(lease.uid, upstream, report)

    def _complete(self, lease: _Lease) -> None:
        """Give the lease back, unless a newer stream of the same request carries it."""
        if self._desk.gate.owns(lease.admitted):
            self._desk.gate.complete(lease.uid, self._completion(lease))

    def _completion(self, lease: _Lease) -> Completion:
        """How the answer ended, as far as its headers tell.

        Envoy closes the stream of an answer that is complete as it closes the stream of one whose
        client left half-way, so the latter counts as complete; the slot is free in both cases.
        """
        head = lease.head
        if head is None:
            return Completion(0, client_gone=True)
        local = head.details != "" and not head.details.startswith("via_upstream")
        if local and head.status < FAILED_FROM:  # Envoy's own word; no model server was asked
            return Completion(0, reached_upstream=False)
        return Completion(
            told_status(head.status, head.headers, lease.trailers),
            first_byte_s=lease.head_at - lease.sent_at,
            last_byte_s=self._desk.clock() - lease.sent_at,
            timed_here=True,
            streamed=head.streamed,
        )

    # -- signs of life, and the end ---------------------------------------------------------------

    async def beat(self) -> None:
        """Keep the leases of open streams alive. Run as a task."""
        while True:
            await asyncio.sleep(BEAT_S)
            for lease in list(self._leases):
                self._desk.gate.heartbeat(lease.uid, lease.call.node)

    def let_go(self) -> None:
        """Before the server stops: end the streams of admitted requests with OK, so that their
        answers go on without us."""
        for lease in list(self._leases):
            if not lease.over.done():
                lease.over.set_result(None)
