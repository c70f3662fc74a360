"""The core's parameters as plain values; `app` fills them from the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy_server.core.ramp import RAMP_S
from policy_server.core.request import Priority

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClassParams:
    """One priority class: longest wait (seconds) and guaranteed share of the limit (0..1)."""

    max_wait_s: float
    share: float


def default_classes() -> dict[Priority, ClassParams]:
    """Budgets an interactive user, a worker and a batch still find useful; shares of §3."""
    return {
        Priority.P0: ClassParams(max_wait_s=5.0, share=0.6),
        Priority.P1: ClassParams(max_wait_s=15.0, share=0.2),
        Priority.P2: ClassParams(max_wait_s=45.0, share=0.05),
    }


@dataclass(frozen=True, slots=True)
class LimitParams:
    """The limit of one pool, in seats. `slo_*` in seconds, None = no target."""

    algorithm: str = "vegas"
    initial: float = 16.0
    minimum: float = 1.0
    maximum: float = 1000.0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class RoomParams:
    """Bounds of the room, over all classes of a pool (held requests only)."""

    max_requests: int = 10_000
    max_bytes: int = 256 * MIB
    tenant_max_requests: int = 2_000
    tenant_weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetryAfterParams:
    """Bounds of Retry-After, seconds. Some SDKs ignore more than 60."""

    min_s: float = 1.0
    max_s: float = 55.0


@dataclass(frozen=True, slots=True)
class PoolParams:
    """Everything the core needs to run one pool.

    `no_backend_wait_s`: how long a request may wait while no back end is ready, seconds; None =
    nobody tells who is ready. `ramp_s`: after so many seconds a new replica is a full one.
    """

    name: str
    limit: LimitParams = field(default_factory=LimitParams)
    classes: Mapping[Priority, ClassParams] = field(default_factory=default_classes)
    room: RoomParams = field(default_factory=RoomParams)
    retry_after: RetryAfterParams = field(default_factory=RetryAfterParams)
    observe_messages_per_s: float = 500.0
    early_drop: bool = True
    jobs_share: float = 0.02  # of the limit, for all jobs together
    no_backend_wait_s: float | None = None
    ramp_s: float = RAMP_S
