"""Jobs at the gate: who wants one, what is wrong with it, what the client is told.

The same for all wirings. What it checks before the body is there needs the headers only:

    411  no content-length: the body could grow past any bound
    413  larger than jobs.max_body
    400  a key or a webhook URL that can't be used
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from policy_server.adapters.answers import Dialect, HttpAnswer, overloaded_answers, shed_answer
from policy_server.adapters.classify import Classified
from policy_server.adapters.patience import wait_asked
from policy_server.adapters.ports import Gate, JobDesk
from policy_server.config_jobs import HOP_BY_HOP, JOBS_PATH, LOCAL_HEADER
from policy_server.core.events import Shed
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.core.request import Priority, Request
from policy_server.journal.jobs import Accepted, Headers, Job, JobRefusal, Submission

MAX_KEY_CHARS = 255
MAX_URL_CHARS = 2048
UNAVAILABLE_RETRY_S = 5.0
FULL_RETRY_S = 30.0
"""A line of so many jobs drains over hours; what matters is not to be asked every second."""
MAX_UNDER_WAY = 256 * 1024 * 1024
"""Bytes of bodies that are in memory at once, before they are on disk."""
_ASYNC = re.compile(r"(?:^|[,;\s])respond-async(?![\w-])", re.IGNORECASE)
LEFT_OUT = HOP_BY_HOP | {
    *("host", "content-length", "prefer", "x-webhook-url", "x-queue-ticket", "x-forwarded-proto")
}
"""Headers that belong to this connection, or to us; they are not sent on."""
OURS = ("x-policy-", "x-envoy-", ":")


@dataclass(frozen=True, slots=True)
class Wish:
    """A job as its headers ask for it. `waits`: a direct answer first, if it comes in time.
    `length`: bytes of its body."""

    method: str
    path: str
    authority: str
    headers: Headers
    key: str
    webhook: str
    waits: bool
    length: int

    @property
    def empty(self) -> bool:
        """Whether there is no body to wait for."""
        return self.length == 0


def prefers_job(prefer: str) -> bool:
    """Whether a `prefer` header says respond-async."""
    return bool(prefer) and _ASYNC.search(prefer) is not None


class JobIntake:
    """What stands between a wiring and the jobs."""

    def __init__(self, jobs: JobDesk, gate: Gate) -> None:
        self.refused: Callable[[Shed, str], None] = lambda *_: None
        """Hears of each refusal, with the `x-request-id`."""
        self._jobs = jobs
        self._gate = gate
        self._under_way = 0  # bytes

    def wish(
        self, seen: Classified, headers: Iterable[tuple[str, str]], *, ended: bool
    ) -> Wish | HttpAnswer | None:
        """What the client wants: a job (checked, or refused), or None = an ordinary request.

        `headers` are all of them, pseudo-headers too; `ended`: no body follows.
        """
        pairs = tuple(headers)
        prefer = ", ".join(value for name, value in pairs if name == "prefer")
        if not prefers_job(prefer) or seen.request is None or not _can_be_job(seen, pairs):
            return None
        problem = self._problem(pairs, ended)
        if problem is not None:
            self._gate.count(seen.pool, seen.priority, Outcome.INVALID)
            return invalid(*problem, seen.dialect)
        if seen.priority is not Priority.P0 and self._gate.lagging():
            return self.busy(seen)
        return Wish(
            method=_first(pairs, ":method"),
            path=_first(pairs, ":path"),
            authority=_first(pairs, ":authority") or _first(pairs, "host"),
            headers=tuple(p for p in pairs if p[0] not in LEFT_OUT and not p[0].startswith(OURS)),
            key=_first(pairs, "idempotency-key"),
            webhook=_first(pairs, "x-webhook-url"),
            waits=wait_asked(prefer) is not None,
            length=0 if ended else int(_first(pairs, "content-length")),
        )

    def _problem(self, pairs: Headers, ended: bool) -> tuple[int, str] | None:
        length = _first(pairs, "content-length")
        if not length and not ended:
            return 411, "A job needs a content-length header: send the body in one piece."
        if length and not (length.isascii() and length.isdigit()):
            return 400, "The content-length header is no number."
        if length and (len(length) > 18 or int(length) > self._jobs.max_body):
            return 413, f"The body of a job may have at most {self._jobs.max_body} bytes."
        key, url = _first(pairs, "idempotency-key"), _first(pairs, "x-webhook-url")
        if len(key) > MAX_KEY_CHARS or not key.isprintable():
            return (
                400,
                f"The idempotency-key may have at most {MAX_KEY_CHARS} printable characters.",
            )
        if len(url) > MAX_URL_CHARS or not url.isprintable():
            return 400, f"The x-webhook-url may have at most {MAX_URL_CHARS} printable characters."
        return None

    def busy(self, seen: Classified) -> HttpAnswer:
        """This server has more to do than it can, or more bodies in memory than fit."""
        self._gate.count(seen.pool, seen.priority, Outcome.SHED, ShedReason.OVERLOADED)
        return overloaded_answers(seen.dialect)[0]

    @contextlib.contextmanager
    def receiving(self, wish: Wish) -> Iterator[bool]:
        """While a body comes in and is written down; whether there is room for it."""
        room = self._under_way == 0 or self._under_way + wish.length <= MAX_UNDER_WAY
        self._under_way += wish.length if room else 0
        try:
            yield room
        finally:
            self._under_way -= wish.length if room else 0

    async def take(self, wish: Wish, seen: Classified, body: bytes) -> HttpAnswer:
        """Accept the job; the 202, once it is written down, or why not."""
        request = seen.request
        if request is None:
            raise ValueError("not governed")
        if len(body) > self._jobs.max_body:
            self._gate.count(seen.pool, seen.priority, Outcome.INVALID)
            text = f"The body of a job may have at most {self._jobs.max_body} bytes."
            return invalid(413, text, seen.dialect)
        outcome = await self._jobs.accept(
            Submission(
                request,
                wish.method,
                wish.path,
                wish.authority,
                wish.headers,
                body,
                wish.key,
                wish.webhook,
                seen.owner,
            )
        )
        if isinstance(outcome, Accepted):
            self._gate.count(seen.pool, seen.priority, Outcome.JOB_ACCEPTED)
            return accepted_answer(outcome.job)
        return self._refused(outcome, seen, request, _first(wish.headers, "x-request-id"))

    def _refused(
        self, refusal: JobRefusal, seen: Classified, request: Request, request_id: str
    ) -> HttpAnswer:
        if refusal in _SHED:
            reason, retry_s = _SHED[refusal]
            self._gate.count(seen.pool, seen.priority, Outcome.SHED, reason)
            shed = Shed(request, reason, retry_s, 0.0, False)
            self.refused(shed, request_id)
            return shed_answer(shed, seen.dialect)
        self._gate.count(seen.pool, seen.priority, Outcome.INVALID)
        return invalid(*_REFUSALS[refusal], seen.dialect)


_SHED = {
    JobRefusal.UNAVAILABLE: (ShedReason.JOURNAL_UNAVAILABLE, UNAVAILABLE_RETRY_S),
    JobRefusal.FULL: (ShedReason.ROOM_FULL, FULL_RETRY_S),
    JobRefusal.TENANT_LIMIT: (ShedReason.TENANT_LIMIT, FULL_RETRY_S),
}
_REFUSALS = {
    JobRefusal.KEY_CLASH: (
        422,
        "This idempotency-key belongs to another request; use a new key for a new request.",
    ),
    JobRefusal.WEBHOOK: (
        400,
        "The x-webhook-url may not be called: it is no http or https URL, its host is not in "
        "jobs.webhooks.allow, or jobs.webhooks.secrets has none for this tenant.",
    ),
    JobRefusal.TOKEN_EXPIRED: (401, "The bearer token has expired; a job can't outlive it."),
}
_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    411: "Length Required",
    413: "Content Too Large",
    422: "Unprocessable Content",
}


def invalid(status: int, message: str, dialect: Dialect) -> HttpAnswer:
    """A request that can't be served as it is; asking again as it is does not help."""
    title = _TITLES[status]
    problem = {"title": title, "status": status, "detail": message}
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    if dialect is Dialect.ANTHROPIC:
        document: dict[str, object] = {
            "type": "error",
            "error": {"type": kind, "message": message},
            **problem,
        }
    else:
        error = {"message": message, "type": kind, "param": None, "code": None}
        document = {"error": error, "type": "about:blank", **problem}
    headers = (("content-type", "application/json"), ("x-should-retry", "false"))
    name = title.lower().replace(" ", "_")
    return HttpAnswer(status, headers, json.dumps(document).encode(), f"policy_{name}")


def not_our_job(dialect: Dialect) -> HttpAnswer:
    """Said to be a job on its way, but none of ours, or one whose lease is over."""
    answer = invalid(403, "This is no job of this policy server.", dialect)
    return replace(answer, headers=(*answer.headers, (LOCAL_HEADER, "true")))


def accepted_answer(job: Job) -> HttpAnswer:
    """202: where the job is found."""
    where = f"{JOBS_PATH}/{job.id}"
    document = {
        "id": job.id,
        "status": job.state.value,
        "location": where,
        "created_at": job.created_at,
        "expires_at": job.expires_at,
    }
    headers = (
        ("location", where),
        ("preference-applied", "respond-async"),
        ("content-type", "application/json"),
        ("x-policy-class", job.priority.name),
    )
    return HttpAnswer(202, headers, json.dumps(document).encode(), "policy_job_accepted")


def _can_be_job(seen: Classified, pairs: Headers) -> bool:
    """gRPC calls and tunnels talk both ways: there is nothing to send later."""
    tunnel = _first(pairs, ":method") == "CONNECT" or _first(pairs, "upgrade") != ""
    return seen.dialect is not Dialect.GRPC and not tunnel


def _first(pairs: Headers, name: str) -> str:
    return next((value.strip() for key, value in pairs if key == name), "")
