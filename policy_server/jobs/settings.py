"""What the service of jobs is told: its rules, its way out, its webhooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policy_server.jobs.bounds import NO_BOUND, Bound


@dataclass(frozen=True, slots=True)
class JobRules:
    """What the configuration says of jobs. Seconds and bytes. `bound`: those open at once, in all
    and of one tenant; `max_result_bytes`: those that have ended. `tenant_header`: who it is.
    `key_lost`: the secrets that wait may be given up."""

    max_body: int = 16 * 1024 * 1024
    queue_ttl_s: float = 86_400.0
    result_ttl_s: float = 86_400.0
    bound: Bound = NO_BOUND
    tenant_bound: Bound = NO_BOUND
    max_result_bytes: int = 2**62
    tenant_header: str = ""
    key_lost: bool = False


@dataclass(frozen=True, slots=True)
class Via:
    """How jobs are sent: through the Envoy at `url`, which can show their answers to the observer
    or not. No `url`: not at all; they are listed, expire and are forgotten; none is accepted."""

    url: str
    observable: bool = True


@dataclass(frozen=True, slots=True)
class Webhooks:
    """What the service needs of webhooks. `allowed(url, tenant)`: whether it may be called."""

    allowed: Callable[[str, str], bool] = lambda _url, _tenant: False
    wake: Callable[[], None] = lambda: None
