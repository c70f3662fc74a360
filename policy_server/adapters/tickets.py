"""`x-queue-ticket`: a place in line, given in writing to whoever is refused, good once.

    ticket = base64url(version, class, since, due, expiry, nonce, tag)
    tag    = HMAC-SHA256(key, all that, pool, tenant), 16 bytes

Who shows it again has its seniority back: the time of its first arrival (`since`) decides its place
among its own tenant's requests, and a refusal hands out a ticket that keeps that time. It brings no
longer wait than the class gives. Where strangers share a line only the time counts that was really
waited here (`since` is that time): tickets cost nothing to get with `prefer: wait=0`, and whoever
renewed some every minute would pass everybody else. Pool and tenant are under the tag, not in the
text. A ticket that is forged, damaged, expired, used, or of another tenant, pool or class is as
good as none: never an error.

`due` is when its holder was told to come back: from then on its return is one that was asked for
(core/retry_budget.py). Until then it still keeps the place.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from policy_server.core.events import Shed
from policy_server.core.outcome import ShedReason, TicketOutcome
from policy_server.core.request import Request

GRACE_S = 60.0
"""Seconds after its due moment during which a ticket is good."""
MAX_LIFE_S = 120
"""The longest Retry-After (55 s) and the grace, rounded up."""
MAX_SENIORITY_S = 300.0
"""However often a ticket is renewed, it proves no more than this."""

_VERSION = 2
_FIELDS = struct.Struct(">BBQII8s")  # version, class, since ms, due s, expiry s, nonce
_TAG_BYTES = 16
_TEXT_CHARS = -(-(_FIELDS.size + _TAG_BYTES) * 4 // 3)


class Keys(Protocol):
    """The keys of this moment."""

    def signing(self, wall: float) -> bytes:
        """The one to sign with; `wall` is Unix seconds."""
        ...

    def accepted(self, wall: float) -> Sequence[bytes]:
        """Those whose tickets are good."""
        ...


class UsedTickets(Protocol):
    """Remembers the tickets that were shown, until they expire."""

    def use(self, nonce: bytes, expires: int, wall: float) -> TicketOutcome:
        """Take a ticket: HONOURED the first time, USED after that, FULL when it can't tell."""
        ...


@dataclass(frozen=True, slots=True)
class _Fields:
    priority: int
    since_ms: int
    due: int
    expires: int
    nonce: bytes


class Tickets:
    """Hands tickets out and takes them back. `told` hears what became of each."""

    def __init__(
        self,
        keys: Keys,
        used: UsedTickets,
        told: Callable[[TicketOutcome], None] = lambda _: None,
    ) -> None:
        self._keys = keys
        self._used = used
        self._told = told

    def use(self, keys: Keys, used: UsedTickets) -> None:
        """Go by these from now on; before the first request."""
        self._keys, self._used = keys, used

    def issue(self, shed: Shed, wall: float) -> str:
        """The ticket for a refusal, "" when coming back would not help or the place is nothing.

        `wall` is Unix seconds now.
        """
        request = shed.request
        if not shed.should_retry or shed.reason is ShedReason.OVERLOADED:
            return ""
        due = wall + shed.retry_after_s
        fields = _FIELDS.pack(
            _VERSION,
            request.priority,
            int(_since(shed) * 1000),
            int(due),
            int(due + GRACE_S),
            os.urandom(8),
        )
        tag = _tag(self._keys.signing(wall), fields, request)
        self._told(TicketOutcome.ISSUED)
        return _encoded(fields + tag)

    def redeem(self, text: str, request: Request, wall: float) -> Request:
        """`request` with what its ticket proves; itself when that is nothing."""
        fields = self._read(text, request, wall)
        outcome = TicketOutcome.INVALID if fields is None else self._take(fields, wall)
        self._told(outcome)
        if fields is None or outcome is not TicketOutcome.HONOURED:
            return request
        since = fields.since_ms / 1000
        tried_s = since if request.shared else request.arrived_wall - since
        return replace(
            request,
            returning=True,
            invited=fields.due <= wall,
            seniority_s=min(max(0.0, tried_s), MAX_SENIORITY_S),
        )

    def _read(self, text: str, request: Request, wall: float) -> _Fields | None:
        """The fields of a genuine ticket of this tenant, pool and class."""
        raw = _decoded(text)
        if raw is None:
            return None
        body, tag = raw[: _FIELDS.size], raw[_FIELDS.size :]
        version, *rest = _FIELDS.unpack(body)
        fields = _Fields(*rest)
        keys = self._keys.accepted(wall)
        genuine = any(hmac.compare_digest(_tag(key, body, request), tag) for key in keys)
        ours = version == _VERSION and fields.priority == request.priority
        return fields if genuine and ours else None

    def _take(self, fields: _Fields, wall: float) -> TicketOutcome:
        if not wall < fields.expires <= wall + MAX_LIFE_S:
            return TicketOutcome.EXPIRED
        return self._used.use(fields.nonce, fields.expires, wall)


def _since(shed: Shed) -> float:
    """Of strangers the seconds that they waited here, else Unix seconds of the first arrival."""
    request = shed.request
    if request.shared:
        return request.seniority_s + shed.wait_s
    return max(0.0, request.arrived_wall - request.seniority_s)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes | None:
    """The bytes of a text that is written the one way in which we write them."""
    if len(text) != _TEXT_CHARS or not text.isascii():
        return None
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return raw if _encoded(raw) == text else None


def _tag(key: bytes, fields: bytes, request: Request) -> bytes:
    who = f"{len(request.pool)} {request.pool}{request.tenant}"
    bound = who.encode("utf-8", "surrogatepass")
    return hmac.digest(key, fields + bound, "sha256")[:_TAG_BYTES]
