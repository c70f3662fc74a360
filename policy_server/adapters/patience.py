"""For how long a caller waits, as far as it says so. It can only shorten what its class allows.

    prefer: wait=N                 N seconds; 0 = never wait (RFC 7240)
    x-stainless-read-timeout: N    the SDK gives up after N seconds without a byte
    x-stainless-timeout: N         the same of other SDKs, the whole answer meant or not
    grpc-timeout: N unit           a gRPC caller's deadline

A caller that gives up at N must be told before that: of the last three a margin is kept. What
can't be read counts as not said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

MARGIN = 0.2
MAX_MARGIN_S = 1.0
"""Part of a deadline kept for the way back, and the most of it."""

_WAIT = re.compile(
    r"(?:^|[,;\s])wait\s*=\s*(\"?)([0-9]{1,9}(?:\.[0-9]{1,9})?)\1\s*(?:$|[,;])", re.I
)
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_GRPC = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def patience_s(headers: Mapping[str, str]) -> float:
    """Seconds for which the caller may be held; infinite when it does not say."""
    if HEADERS.isdisjoint(headers):
        return math.inf
    shortest = math.inf
    for name, read in _READ.items():
        value = headers.get(name)
        if value:
            shortest = min(shortest, read(value))
    return shortest


def wait_asked(prefer: str) -> float | None:
    """Seconds of the `wait=N` in a `prefer` header; None = it has none that can be read."""
    found = _WAIT.search(prefer)
    return float(found[2]) if found else None


def _wait(value: str) -> float:
    asked = wait_asked(value)
    return math.inf if asked is None else asked


def _sdk(value: str) -> float:
    seconds = float(value) if _SECONDS.fullmatch(value) else 0.0
    return _less_margin(seconds) if seconds > 0.0 else math.inf  # 0: some mean "no timeout"


def _grpc(value: str) -> float:
    found = _GRPC.fullmatch(value)
    return _less_margin(int(found[1]) * _UNIT_S[found[2]]) if found else math.inf


def _less_margin(seconds: float) -> float:
    return seconds - min(MARGIN * seconds, MAX_MARGIN_S)


_READ = {
    "prefer": _wait,
    "x-stainless-read-timeout": _sdk,
    "x-stainless-timeout": _sdk,
    "grpc-timeout": _grpc,
}
HEADERS = frozenset(_READ)
"""The headers that are read here."""
