"""Whether a retry was asked for: a budget per tenant, so that a storm hurts only who makes it.

    told to come back at t   one invitation, good from t on, for KEEP_S
    a request was served     +.1, at most MAX_RETRIES
    a retry                  takes an invitation that is due, else −1, else it is over the budget

A client that honours Retry-After always finds its own invitation, so it never meets the budget,
however long the overload lasts. What is over is refused before anything else, unless a slot is
free and nobody wants it: it gets no place, no booking and no new invitation, and it counts neither
as an arrival nor as a promise that was broken. The rule of +.1 and −1 is that of Finagle's and
Envoy's retry budgets; START_RETRIES lets a tenant that was never refused here retry after a lost
connection or an error of the model server.

Requests without a tenant have no budget: strangers must not pay for each other. Their invitations
are counted together, for only a return that took one (or brought a ticket that says so) tells
whether promises are kept and how many come back: a retry count costs nothing to claim.

Bounds: MAX_TENANTS accounts; the one unused longest is forgotten, and starts anew if it returns.
An account has at most one entry per second that an invitation may lie ahead or be kept.
Owner: the pool; pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from sortedcontainers import SortedDict

from policy_server.core.request import Request

SUCCESSES_PER_RETRY = 10
START_RETRIES = 10
MAX_RETRIES = 100
KEEP_S = 60.0
"""An invitation that nobody took by then is void: its client has given up."""
AMNESTY_S = KEEP_S + 60.0
"""After a loss of memory: as long as clients may come that were invited before it."""
MAX_TENANTS = 10_000


@dataclass(slots=True)
class _Account:
    """One tenant. `saved`: successes not yet spent; `invited`: second when due → how many."""

    saved: int = START_RETRIES * SUCCESSES_PER_RETRY
    invited: SortedDict[int, int] = field(default_factory=SortedDict)


class RetryBudget:
    """The accounts of one pool. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._strangers: SortedDict[int, int] = SortedDict()
        self._amnesty_until = float("-inf")

    def __len__(self) -> int:
        """Tenants with an account."""
        return len(self._accounts)

    def forgive(self, now: float, for_s: float = AMNESTY_S) -> None:
        """Somebody else may have invited them: for a while all retries count as asked for."""
        self._amnesty_until = max(self._amnesty_until, now + for_s)

    def look(self, request: Request, now: float) -> Request | None:
        """It, `invited` if it was told to come by now; None = a retry that nobody asked for."""
        if not request.returning:
            return request
        if _take_invitation(self._invitations(request.tenant), now):
            return replace(request, invited=True)
        return request if request.invited or self._pays(request.tenant, now) else None

    def served(self, tenant: str) -> None:
        """A request of this tenant was answered."""
        if tenant:
            account = self._account(tenant)
            account.saved = min(MAX_RETRIES * SUCCESSES_PER_RETRY, account.saved + 1)

    def invite(self, tenant: str, due: float, now: float) -> None:
        """A client of this tenant was told to come back at `due`."""
        invited = self._invitations(tenant)
        _forget_void(invited, now)
        invited[int(due)] = invited.get(int(due), 0) + 1

    def take(self, tenant: str, now: float) -> bool:
        """Pay for a retry; whether there was something to pay with."""
        return _take_invitation(self._invitations(tenant), now) or self._pays(tenant, now)

    def _invitations(self, tenant: str) -> SortedDict[int, int]:
        return self._account(tenant).invited if tenant else self._strangers

    def _pays(self, tenant: str, now: float) -> bool:
        if not tenant or now < self._amnesty_until:
            return True
        account = self._account(tenant)
        if account.saved >= SUCCESSES_PER_RETRY:
            account.saved -= SUCCESSES_PER_RETRY
            return True
        return False

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
            if len(self._accounts) > MAX_TENANTS:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(tenant)
        return account


def _forget_void(invited: SortedDict[int, int], now: float) -> None:
    while invited and invited.peekitem(0)[0] < now - KEEP_S:
        invited.popitem(0)


def _take_invitation(invited: SortedDict[int, int], now: float) -> bool:
    """The oldest that is due and not void."""
    _forget_void(invited, now)
    if not invited or invited.peekitem(0)[0] > now:
        return False
    due, count = invited.peekitem(0)
    if count > 1:
        invited[due] = count - 1
    else:
        del invited[due]
    return True
