"""One attempt of a job: unseal it, send it, say how that went. Nothing is written down here."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import aiohttp

from policy_server.config import MAX_JOB_ANSWER_BYTES
from policy_server.config_jobs import PASSPORT_HEADER
from policy_server.core.samples import Completion
from policy_server.driver import NEVER_SENT
from policy_server.jobs.attempts import Attempt
from policy_server.jobs.leaps import LifeClock
from policy_server.jobs.passport import Passports
from policy_server.jobs.sender import Delivery, Parcel, Sender, TooLargeError, request_target
from policy_server.jobs.token import runs_out_at
from policy_server.jobs.vault import Vault, VaultError, join_target
from policy_server.journal.jobs import Answer, Ending, Headers, Job, JobRequest, JobState
from policy_server.memory import Share

NO_ANSWER = Completion(status=503)
CANT_BE_SENT = "it has a header or a path that can't be sent"
REFUSED = frozenset({400, 413, 414, 431})
"""What Envoy says by itself of the request as it is, and would say each time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt went, for the lease and for the job. `final`: the end, whatever the attempt
    says."""

    attempt: Attempt
    completion: Completion
    answer: Answer | None = None
    final: Ending | None = None


class Courier:
    """Sends jobs with a passport. `life_clock`: see `LifeClock`."""

    def __init__(
        self, sender: Sender, vault: Vault, passports: Passports, life_clock: LifeClock
    ) -> None:
        self.problem: str | None = None
        """Why nothing could be sent when it was tried last, for people."""
        self.sender = sender
        self._vault = vault
        self._passports = passports
        self._life_clock = life_clock

    def pack(self, job: Job, content: JobRequest, uid: str) -> Parcel | Outcome:
        """What to send; or the end of the job, when it may not or can't be sent."""
        now = time.time()
        if self._life_clock.now(job.expires_at - job.created_at) >= job.expires_at:
            return over(Ending(job.id, JobState.EXPIRED, now, "its time in the queue was up"))
        try:
            target, secret = join_target(job.path, self._vault.open(job.id, content.sealed))
        except VaultError as error:
            return over(Ending(job.id, JobState.FAILED, now, str(error)))
        if runs_out_at(secret) <= now:
            return over(Ending(job.id, JobState.EXPIRED, now, "its bearer token has run out"))
        try:
            target = request_target(target)
        except ValueError:
            return over(Ending(job.id, JobState.FAILED, now, CANT_BE_SENT))
        ours: Headers = (
            (PASSPORT_HEADER, self._passports.issue(uid, job.method, target, now)),
            ("x-policy-uid", uid),
        )
        headers = (*content.headers, *secret, *ours)
        return Parcel(job.method, target, content.authority, headers, content.body)

    async def deliver(self, job: Job, parcel: Parcel, share: Share) -> Outcome:
        """Send it and wait for the whole answer."""
        try:
            delivery = await self.sender.send(parcel, share)
        except TooLargeError:
            detail = f"the answer is larger than {MAX_JOB_ANSWER_BYTES >> 20} MiB"
            ended = Ending(job.id, JobState.FAILED, time.time(), detail)
            return over(ended, Completion(status=200))
        except (aiohttp.ClientError, OSError) as error:
            return self._no_answer(error)
        except ValueError:  # the HTTP client refuses it, and would each time
            return over(Ending(job.id, JobState.FAILED, time.time(), CANT_BE_SENT))
        self.problem = None
        return answered(delivery)

    def _no_answer(self, error: Exception) -> Outcome:
        reached = not isinstance(
            error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
        )
        if not reached:
            self.problem = f"jobs can't be sent through jobs.via: {error}; is Envoy there?"
        attempt = Attempt(None, {}, f"no answer: {type(error).__name__}", reached)
        return Outcome(attempt, NO_ANSWER)


def over(final: Ending, completion: Completion = NEVER_SENT) -> Outcome:
    """The job ends here."""
    return Outcome(Attempt(None, {}), completion, final=final)


def mistake(error: Exception) -> Outcome:
    """A fault of ours on the way, which is tried again so often and no oftener."""
    return Outcome(Attempt(None, {}, f"internal: {type(error).__name__}"), NO_ANSWER)


def answered(delivery: Delivery) -> Outcome:
    """A whole answer: a model server's, or Envoy's word that there is none."""
    answer = delivery.answer
    headers = dict(answer.headers)
    if delivery.flags is not None:
        what = "the model server broke off" if delivery.reached else "no model server was reached"
        detail = f"{what}: Envoy answered {answer.status} ({delivery.flags})"
        counts = delivery.reached or answer.status in REFUSED
        return Outcome(Attempt(None, headers, detail, counts), NO_ANSWER)
    completion = Completion(answer.status)
    if not delivery.held_back:
        completion = replace(
            completion,
            first_byte_s=delivery.first_byte_s,
            last_byte_s=delivery.last_byte_s,
            timed_here=True,
        )
    detail = f"the model server answered {answer.status}"
    return Outcome(Attempt(answer.status, headers, detail), completion, answer)
