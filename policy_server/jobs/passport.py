"""How the gate knows a dispatched job again: a signed header.

    x-policy-job: UID EXPIRY SIGNATURE      HMAC-SHA256 over uid, method, path, expiry

The uid names job and attempt, and is that of the lease which the dispatcher holds. The key lives
as long as the process: a header of an earlier one, or of anybody else, opens nothing, and the
header never leaves for the model server.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256

VALID_S = 120.0  # from the dispatch to the moment at which the gate sees it
_PREFIX = "job-"


def uid_of(job_id: str, attempt: int) -> str:
    """The identity of one attempt."""
    return f"{_PREFIX}{job_id}-{attempt}"


def job_of(uid: str) -> str:
    """The job behind an attempt."""
    return uid.removeprefix(_PREFIX).partition("-")[0]


class Passports:
    """Signs and checks. Times are Unix seconds."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def issue(self, uid: str, method: str, path: str, now: float) -> str:
        """The header's value for one attempt."""
        expiry = str(int(now + VALID_S))
        return f"{uid} {expiry} {self._signature(uid, method, path, expiry)}"

    def holder(self, value: str, method: str, path: str, now: float) -> str | None:
        """The uid, when the value is ours, for this request, and still valid."""
        uid, _, rest = value.partition(" ")
        expiry, _, signature = rest.partition(" ")
        if not signature.isascii() or not expiry.isascii() or not expiry.isdigit():
            return None
        if not hmac.compare_digest(signature, self._signature(uid, method, path, expiry)):
            return None
        return uid if len(expiry) < 16 and int(expiry) >= now else None

    def _signature(self, uid: str, method: str, path: str, expiry: str) -> str:
        text = "\n".join((uid, method, path, expiry))
        return hmac.new(self._key, text.encode("utf-8", "replace"), sha256).hexdigest()
