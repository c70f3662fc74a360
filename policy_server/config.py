"""The configuration file: its models, defaults and rules. `config_source` reads and locates it.

Every key is optional; an unknown key is an error that names the nearest known one. The rules here
are those that would otherwise surface as a silent surprise at run time: shares that promise more
than the limit, a pool that no request can reach, a wait budget of zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    ByteSize,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from policy_server import config_source
from policy_server.config_pools import PoolConfig
from policy_server.config_source import ConfigError
from policy_server.config_types import (
    MAX_RETRY_AFTER_S,
    Address,
    ClassName,
    HoldSeconds,
    Seconds,
    Section,
    Share,
    Url,
    absolute_path,
    split_host_port,
    tenant_source,
    webhook_host,
    webhook_secret,
)
from policy_server.core.params import (
    ClassParams,
    LimitParams,
    PoolParams,
    RetryAfterParams,
    RoomParams,
)
from policy_server.core.request import Priority

__all__ = ["Config", "ConfigError", "load_config", "split_host_port", "to_pool_params"]


class TlsConfig(Section):
    """Keys of the gRPC port. `client_ca` set = callers must show a certificate it signed.

    Envoy shows `client_cert`/`client_key` (default: the server's own pair) and trusts
    `server_ca` (default: `client_ca`, else the server's certificate itself).
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    server_ca: Path | None = None


class ServerConfig(Section):
    """Where the policy server listens."""

    grpc: Address = "127.0.0.1:9002"
    http: Address = "127.0.0.1:9003"
    tls: TlsConfig | None = None
    admin_token_file: Path | None = None

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.grpc == self.http:
            raise ValueError(f"grpc and http are both {self.grpc}; give them different ports")
        return self


DEFAULT_JOURNAL = Path("data/journal.db")


class JournalConfig(Section):
    """`fsync: interval` trades the last `fsync_interval_ms` of jobs for speed."""

    path: Path = DEFAULT_JOURNAL
    fsync: Literal["always", "interval"] = "always"
    fsync_interval_ms: float = Field(default=50, gt=0, le=10_000)

    def file_in(self, data_dir: Path) -> Path:
        """The default lies in the data directory; a path that is set counts from where we run."""
        return data_dir / DEFAULT_JOURNAL.name if self.path == DEFAULT_JOURNAL else self.path


class GovernConfig(Section):
    """Which requests are under the limit: these methods on these path prefixes."""

    methods: tuple[str, ...] = ("POST",)
    paths: tuple[Annotated[str, AfterValidator(absolute_path)], ...] = ("/",)

    @field_validator("methods")
    @classmethod
    def _upper(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for method in value:
            if not re.fullmatch(r"[A-Za-z][A-Za-z-]*", method):
                raise ValueError(f"{method!r} is not an HTTP method; write for example POST")
        return tuple(method.upper() for method in value)


class ClassConfig(Section):
    """One priority class: longest wait (seconds) and guaranteed share of the limit."""

    max_wait_s: HoldSeconds
    share: Share


class P0Config(ClassConfig):
    """Interactive users."""

    max_wait_s: HoldSeconds = 5
    share: Share = 0.6


class P1Config(ClassConfig):
    """Workers and agents."""

    max_wait_s: HoldSeconds = 15
    share: Share = 0.2


class P2Config(ClassConfig):
    """Batch."""

    max_wait_s: HoldSeconds = 45
    share: Share = 0.05


class ClassesConfig(Section):
    """The classes, most important first."""

    P0: P0Config = P0Config()
    P1: P1Config = P1Config()
    P2: P2Config = P2Config()

    def by_priority(self) -> dict[Priority, ClassConfig]:
        """The classes keyed by the core's priority."""
        return {Priority.P0: self.P0, Priority.P1: self.P1, Priority.P2: self.P2}


class RoomConfig(Section):
    """Bounds of the waiting room. The tenant's cap does not bind anonymous traffic."""

    max_requests: int = Field(default=10_000, ge=1)
    max_bytes: ByteSize = ByteSize(256 * 1024 * 1024)
    tenant_max_requests: int = Field(default=2_000, ge=1)


class TenantsConfig(Section):
    """Where a tenant's name comes from, its weight and its highest class."""

    source: Annotated[str, AfterValidator(tenant_source)] = Field(
        default="header:x-tenant-id", alias="from"
    )
    known: tuple[str, ...] = ()
    weights: Mapping[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    max_class: Mapping[str, ClassName] = Field(default_factory=dict)
    default_max_class: ClassName = "P0"

    @property
    def named(self) -> tuple[str, ...]:
        """Every tenant that the configuration names, in its order."""
        return tuple(dict.fromkeys((*self.known, *self.weights, *self.max_class)))


class RetryAfterConfig(Section):
    """Bounds of Retry-After, whole seconds."""

    min_s: int = Field(default=1, ge=1, le=MAX_RETRY_AFTER_S)
    max_s: int = Field(default=MAX_RETRY_AFTER_S, ge=1, le=MAX_RETRY_AFTER_S)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_s > self.max_s:
            raise ValueError(f"min_s {self.min_s} is above max_s {self.max_s}; swap or equal them")
        return self


class WebhooksConfig(Section):
    """Hosts that may be called, and signing secrets by tenant."""

    allow: tuple[Annotated[str, AfterValidator(webhook_host)], ...] = ()
    secrets: Mapping[str, Annotated[str, AfterValidator(webhook_secret)]] = Field(
        default_factory=dict
    )


MIN_ENVOY_HEAP_BYTES = 64 * 1024 * 1024  # below it Envoy refuses while it is idle
MAX_JOB_ANSWER_BYTES = 64 * 1024 * 1024
"""A larger answer to a job is not kept; one of this size is, whatever the bound of all."""
MAX_JOB_BODY_BYTES = 1024**3  # Envoy buffers twice as much and counts in 32 bits


class JobsConfig(Section):
    """`Prefer: respond-async`. `via` = the Envoy to send jobs through (URL). The bounds are of jobs
    that have not ended, and of their bodies; the tenant's do not bind anonymous traffic."""

    enabled: bool = True
    via: Url | None = None
    max_body: Annotated[ByteSize, Field(le=MAX_JOB_BODY_BYTES)] = ByteSize(16 * 1024 * 1024)
    max_jobs: int = Field(default=100_000, ge=1)
    max_bytes: ByteSize = ByteSize(10 * 1024**3)
    tenant_max_jobs: int = Field(default=20_000, ge=1)
    tenant_max_bytes: ByteSize = ByteSize(2 * 1024**3)
    max_result_bytes: Annotated[ByteSize, Field(ge=MAX_JOB_ANSWER_BYTES)] = ByteSize(10 * 1024**3)
    queue_ttl_s: Seconds = 86_400
    result_ttl_s: Seconds = 86_400
    share: Share = 0.02
    webhooks: WebhooksConfig = WebhooksConfig()

    @model_validator(mode="after")
    def _largest_fits(self) -> Self:
        for name in ("max_bytes", "tenant_max_bytes"):
            if getattr(self, name) < self.max_body:
                raise ValueError(
                    f"{name} is below max_body, {self.max_body.human_readable()}: the largest job "
                    f"would be told to come back for ever; raise {name} or lower max_body"
                )
        return self


MIN_BODY_BUFFER = 32 * 1024 * 1024


class EnvoyConfig(Section):
    """Bounds of the Envoy that our bootstrap makes. `max_heap` None = from the rooms."""

    max_heap: Annotated[ByteSize, Field(ge=MIN_ENVOY_HEAP_BYTES)] | None = None


class Config(Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    journal: JournalConfig = JournalConfig()
    govern: GovernConfig = GovernConfig()
    pools: tuple[PoolConfig, ...] = (PoolConfig(),)
    classes: ClassesConfig = ClassesConfig()
    default_class: ClassName = "P1"
    room: RoomConfig = RoomConfig()
    tenants: TenantsConfig = TenantsConfig()
    retry_after: RetryAfterConfig = RetryAfterConfig()
    jobs: JobsConfig = JobsConfig()
    envoy: EnvoyConfig = EnvoyConfig()

    @property
    def body_buffer_bytes(self) -> int:
        """The largest body that Envoy takes on a governed route, with room to spare for jobs.

        It must fit whole: json_to_metadata reads it, and an HTTP/1.1 client that waits with more
        than the buffer in flight cannot be seen leaving.
        """
        return max(MIN_BODY_BUFFER, 2 * int(self.jobs.max_body))

    @field_validator("pools")
    @classmethod
    def _reachable(cls, pools: tuple[PoolConfig, ...]) -> tuple[PoolConfig, ...]:
        if not pools:
            raise ValueError("no pool is left; add one, or remove the key for the default pool")
        for index, pool in enumerate(pools):
            for earlier in pools[:index]:
                if earlier.name == pool.name:
                    raise ValueError(f"two pools are named {pool.name!r}; rename one")
                if earlier.match.covers(pool.match):
                    raise ValueError(
                        f"pool {pool.name!r} can never match: {earlier.name!r} above it takes all "
                        f"its requests; put {pool.name!r} first or narrow {earlier.name!r}"
                    )
        return pools

    @model_validator(mode="after")
    def _shares(self) -> Self:
        total = self.jobs.share + sum(c.share for c in self.classes.by_priority().values())
        if total > 1 + 1e-9:
            raise ValueError(
                f"the shares of classes and jobs add up to {total:.3g}; lower classes.*.share or "
                "jobs.share until they are at most 1"
            )
        return self

    @property
    def longest_hold_s(self) -> float:
        """The longest time a request may be held at the gate, in seconds."""
        waits = [c.max_wait_s for c in self.classes.by_priority().values()]
        return max(waits + [p.no_backend_wait_s for p in self.pools if p.backends.known])


def load_config(path: Path | None, env: Mapping[str, str]) -> Config:
    """The configuration in `path` (None = the defaults) with `POLICY_…__…` overrides from `env`.

    Raises ConfigError: one line with the file, the key, its line, the problem and the fix.
    """
    source = config_source.read(path)
    config_source.apply_env(source, env, Config)
    try:
        return Config.model_validate(source.data)
    except ValidationError as error:
        raise config_source.explain(error, source, Config) from None


def to_pool_params(config: Config) -> list[PoolParams]:
    """The core's view of each pool."""
    classes = {
        priority: ClassParams(max_wait_s=c.max_wait_s, share=c.share)
        for priority, c in config.classes.by_priority().items()
    }
    room = RoomParams(
        max_requests=config.room.max_requests,
        max_bytes=int(config.room.max_bytes),
        tenant_max_requests=config.room.tenant_max_requests,
        tenant_weights=config.tenants.weights,
    )
    retry_after = RetryAfterParams(
        min_s=float(config.retry_after.min_s), max_s=float(config.retry_after.max_s)
    )
    return [
        PoolParams(
            name=pool.name,
            limit=_limit_params(pool),
            classes=classes,
            room=room,
            retry_after=retry_after,
            observe_messages_per_s=pool.observe.max_messages_per_s,
            jobs_share=config.jobs.share if config.jobs.enabled else 0.0,
            no_backend_wait_s=pool.no_backend_wait_s if pool.backends.known else None,
            ramp_s=pool.backends.ramp_s,
        )
        for pool in config.pools
    ]


def _limit_params(pool: PoolConfig) -> LimitParams:
    return LimitParams(
        algorithm=pool.limit.algorithm,
        initial=pool.limit.initial,
        minimum=pool.limit.min,
        maximum=pool.limit.max,
        slo_ttft_s=pool.slo.ttft_s,
        slo_tpot_s=pool.slo.tpot_s,
    )
