"""The HTTP API of jobs, under `/policy/jobs`.

    GET    /policy/jobs               the caller's newest jobs (?limit=, at most 1000)
    GET    /policy/jobs/{id}          where it stands
    GET    /policy/jobs/{id}/response what the model server answered: status, headers, body
    GET    /policy/jobs/{id}/events   server-sent events: its history, then what happens
    DELETE /policy/jobs/{id}          cancel

Who asks: through the gateway, Envoy says so (`x-policy-caller`, `x-policy-tenant`; it removes what
comes under these names from outside), and a caller sees the jobs of its tenant only: another's are
404. Directly on this port it is the operator, who sees all; with an admin token set, Envoy proves
itself with a secret made of the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from policy_server.adapters.answers import Dialect
from policy_server.adapters.classify import key_hash, owner_name
from policy_server.adapters.ports import JobDesk
from policy_server.adapters.rules import ClassifyRules
from policy_server.config_jobs import CALLER_HEADER, HOP_BY_HOP, JOBS_PATH, TENANT_HEADER
from policy_server.config_source import ConfigError
from policy_server.journal.jobs import AnswerHead, Job, JobEvent, JobState
from policy_server.journal.port import JournalError
from policy_server.memory import Memory, Share

MAX_LISTED = 1000
DEFAULT_LISTED = 100
AT_A_TIME = 25
"""Lines of a list that are made in one go: a quarter of a millisecond."""
POLL_AFTER_S = 2
MAX_READING = 128 * 1024 * 1024
"""Bytes of answers in memory, of all who fetch one. Each has a piece of it at a time."""
READ_WAIT_S = 10.0
PIECE = 256 * 1024
IN_MEMORY = 2
"""As what was read, and as what the connection has not taken yet."""
PIECE_S = 30.0
"""Who does not take a piece in so long is cut off."""
MAX_STREAMS, MAX_OWN_STREAMS = 2000, 500
"""Event streams at once, in all and of the jobs of one tenant: each is a connection that Envoy has
so many of for everybody (`clusters.API_CEILING`)."""
MANY_STREAMS_S = 5
PROBLEM = "application/problem+json"
_NOT_OURS = HOP_BY_HOP | {"content-length"}
_NO_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class JobsApiDeps:
    """`rules` are those in force; `mark` is what Envoy calls itself (`config_jobs.caller_mark`)."""

    jobs: JobDesk
    rules: Callable[[], ClassifyRules]
    mark: Callable[[], str]


class JobsApi:
    """The routes. Which callers get here at all is decided in front of it."""

    def __init__(self, deps: JobsApiDeps) -> None:
        self._d = deps
        self._streams: set[asyncio.Timeout] = set()
        self._readers: Counter[str] = Counter()
        self._listing = asyncio.Lock()
        self._closing = False
        self._reading = Memory(MAX_READING)

    async def close(self, _app: web.Application) -> None:
        """End the event streams: their clients look elsewhere and go on after the last number."""
        self._closing = True
        for stream in self._streams:
            stream.reschedule(asyncio.get_running_loop().time())

    def routes(self) -> list[web.RouteDef]:
        """For the application of the HTTP port."""
        guarded = self._guarded
        return [
            web.get(JOBS_PATH, guarded(self.listed)),
            web.get(JOBS_PATH + "/{id}", guarded(self.show)),
            web.get(JOBS_PATH + "/{id}/response", guarded(self.response)),
            web.get(JOBS_PATH + "/{id}/events", guarded(self.events)),
            web.delete(JOBS_PATH + "/{id}", guarded(self.cancel)),
        ]

    def brought_by_gateway(self, request: web.Request) -> bool:
        """Whether Envoy brings this request here, for a client. Raises ConfigError when what Envoy
        calls itself can't be known."""
        given = request.headers.get(CALLER_HEADER)
        if given is None or not (request.path + "/").startswith(JOBS_PATH + "/"):
            return False
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._d.mark().encode())

    def _owners(self, request: web.Request) -> frozenset[str] | None:
        """Whose jobs the caller may see: of each key that it shows; None = of all."""
        if CALLER_HEADER not in request.headers:
            return None
        rules = self._d.rules()
        names = {_text(request.headers.get(TENANT_HEADER, ""))}
        if not rules.tenant.header and not rules.tenant.metadata:
            headers = {name.lower(): _text(value) for name, value in request.headers.items()}
            names = {key_hash(headers, dialect) for dialect in Dialect}
        return frozenset(owner_name(name) for name in names)

    def _guarded(self, handler: Handler) -> Handler:
        """Turns a store that can't answer into a 503."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                if CALLER_HEADER in request.headers and not self.brought_by_gateway(request):
                    return _problem(403, "This Envoy is not known here.")
                return await handler(request)
            except ConfigError as error:
                return _problem(503, str(error))
            except JournalError as error:
                response = _problem(503, f"The jobs can't be read: {error}")
                response.headers["retry-after"] = str(POLL_AFTER_S)
                return response

        return guarded

    async def _job(self, request: web.Request) -> Job:
        job = await self._d.jobs.find(request.match_info["id"])
        owners = self._owners(request)
        if job is None or (owners is not None and job.owner not in owners):
            raise _not_found()
        return job

    async def listed(self, request: web.Request) -> web.StreamResponse:
        """The newest jobs."""
        owners = self._owners(request)
        if owners is not None and not owners - {""}:
            return _problem(403, "Without a tenant there is nothing to list.")
        asked = request.query.get("limit", str(DEFAULT_LISTED))
        if not asked.isascii() or not asked.isdigit():
            return _problem(400, "limit is no number.")
        limit = max(1, min(int(asked[:6]), MAX_LISTED))
        whose = [None] if owners is None else [*sorted(owners - {""})]
        async with self._listing:  # one after the other: lists are the largest of all pages
            jobs = [job for one in whose for job in await self._d.jobs.listed(one, limit)]
            jobs.sort(key=lambda job: job.created_at, reverse=True)
            lines = []
            for job in jobs[:limit]:
                lines.append(json.dumps(job_document(job)))
                if len(lines) % AT_A_TIME == 0:
                    await asyncio.sleep(0)  # decisions are made on this loop, too
        text = '{"jobs": [\n' + ",\n".join(lines) + "\n]}\n"
        return web.Response(text=text, content_type="application/json")

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The record."""
        job = await self._job(request)
        headers = {} if job.state.ended else {"retry-after": str(POLL_AFTER_S)}
        return _json(job_document(job), headers=headers)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """End it; 409 when it has ended already."""
        job = await self._job(request)
        ended = await self._d.jobs.cancel(job.id)
        if ended is None:
            return _problem(409, "The job has ended already.")
        return _json(job_document(ended))

    async def response(self, request: web.Request) -> web.StreamResponse:
        """The answer, byte for byte."""
        job = await self._job(request)
        head = await self._d.jobs.answer_head(job.id)
        if head is not None:
            return await self._replay(request, job.id, head)
        if not job.state.ended:
            response = _problem(409, f"The job is {job.state.value}: no answer yet.")
            response.headers["retry-after"] = str(POLL_AFTER_S)
            return response
        if job.state is JobState.FAILED:
            return _problem(502, job.detail or "No model server answered.")
        return _problem(410, f"The job is {job.state.value}: there is no answer.")

    async def _replay(
        self, request: web.Request, job_id: str, head: AnswerHead
    ) -> web.StreamResponse:
        """The stored answer, as if the model server gave it now, in pieces."""
        with self._reading.share() as share:
            try:
                async with asyncio.timeout(READ_WAIT_S):
                    await share.grow(IN_MEMORY * PIECE)
            except TimeoutError:
                problem = _problem(503, "Many answers are being fetched; ask again.")
                problem.headers["retry-after"] = str(POLL_AFTER_S)
                return problem
            response = Replayed(head)
            await response.prepare(request)
            size = 0 if request.method == "HEAD" else response.content_length or 0
            try:
                whole = await self._write(response, job_id, size, share)
            except (TimeoutError, ConnectionError, JournalError):
                whole = False
            if not whole and request.transport is not None:
                request.transport.abort()  # the status is out: only this says that more would come
            return response

    async def _write(
        self, response: web.StreamResponse, job_id: str, size: int, share: Share
    ) -> bool:
        """The body, `size` bytes; False when it is forgotten in the middle."""
        for start in range(0, size, PIECE):
            if not share.held:
                await share.grow(IN_MEMORY * PIECE)
            piece = await self._d.jobs.answer_part(job_id, start, PIECE)
            if piece is None:
                return False
            async with asyncio.timeout(PIECE_S):
                await response.write(piece)
            share.shrink_to(0)  # whoever waits longer has the next turn
        await response.write_eof()
        return True

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, up to the end of the job."""
        job = await self._job(request)
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 10 else 0
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "cache-control": "no-store"}
        )
        if request.method == "HEAD":  # whoever asks for the head gets no stream behind it
            return response
        if self._closing:
            return _problem(503, "This server is stopping; ask again.")
        if self._readers.total() >= MAX_STREAMS or self._readers[job.owner] >= MAX_OWN_STREAMS:
            problem = _problem(429, "Too many event streams are open; ask for the job's state.")
            problem.headers["retry-after"] = str(MANY_STREAMS_S)
            return problem
        try:
            with self._reader(job.owner):
                await response.prepare(request)
                await self._stream(self._d.jobs.events(job.id, after), response)
        except ConnectionError:  # the client has left
            pass
        except JournalError:  # the status is out: only a broken stream says that more would come
            if request.transport is not None:
                request.transport.abort()
        return response

    @contextlib.contextmanager
    def _reader(self, owner: str) -> Iterator[None]:
        self._readers[owner] += 1
        try:
            yield
        finally:
            self._readers[owner] -= 1
            if not self._readers[owner]:
                del self._readers[owner]

    async def _stream(
        self, events: AsyncIterator[JobEvent | None], response: web.StreamResponse
    ) -> None:
        try:
            async with asyncio.timeout(0 if self._closing else None) as scope:
                self._streams.add(scope)
                try:
                    async for event in events:
                        text = b": waiting\n\n" if event is None else event_bytes(event)
                        await response.write(text)
                finally:
                    self._streams.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
        await response.write_eof()


def _text(value: str) -> str:
    """A header as the gate reads it, bytes that are no UTF-8 replaced: or who has such a name would
    not find what it brought."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def job_document(job: Job) -> dict[str, object]:
    """The record as its owner sees it."""
    where = f"{JOBS_PATH}/{job.id}"
    return {
        "id": job.id,
        "status": job.state.value,
        "created_at": job.created_at,
        "changed_at": job.changed_at,
        "expires_at": job.expires_at,
        "class": job.priority.name,
        "tenant": job.owner,
        "method": job.method,
        "path": job.path.partition("?")[0],
        "attempts": job.attempt,
        "next_attempt_at": job.not_before or None,
        "response_status": job.status,
        "detail": job.detail,
        "links": {"self": where, "response": f"{where}/response", "events": f"{where}/events"},
    }


def event_bytes(event: JobEvent) -> bytes:
    """One event on the wire."""
    data = {"status": event.state.value, "at": event.at, "detail": event.detail}
    text = f"id: {event.number}\nevent: {event.state.value}\ndata: {json.dumps(data)}\n\n"
    return text.encode()


class Replayed(web.StreamResponse):
    """An answer that is somebody else's: nothing is added to its headers."""

    def __init__(self, head: AnswerHead) -> None:
        headers = CIMultiDict(pair for pair in head.headers if pair[0] not in _NOT_OURS)
        super().__init__(status=head.status, headers=headers)
        self._added = {"content-type", "server"} - {name for name, _ in head.headers}
        if head.status not in _NO_BODY:
            self.content_length = head.body_bytes

    @staticmethod
    async def bare(_request: web.Request, response: web.StreamResponse) -> None:
        """Before an answer goes: what aiohttp has added by itself is taken off."""
        if isinstance(response, Replayed):
            for name in response._added:
                response.headers.popall(name, None)


def _json(document: Mapping[str, object], headers: Mapping[str, str] | None = None) -> web.Response:
    text = json.dumps(document, indent=1) + "\n"
    return web.Response(text=text, content_type="application/json", headers=headers)


def _problem(status: int, detail: str) -> web.Response:
    text = _problem_text(status, detail)
    return web.Response(status=status, text=text, content_type=PROBLEM)


def _not_found() -> web.HTTPException:
    text = _problem_text(404, "There is no such job, or it is forgotten.")
    return web.HTTPNotFound(text=text, content_type=PROBLEM)


def _problem_text(status: int, detail: str) -> str:
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return json.dumps(problem) + "\n"
