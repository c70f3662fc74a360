"""The rules of classification, compiled once from the configuration."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from policy_server.adapters import patience
from policy_server.config import MIN_BODY_BUFFER, Config
from policy_server.config_jobs import PASSPORT_HEADER
from policy_server.config_pools import MatchConfig
from policy_server.core.params import default_classes
from policy_server.core.request import Priority

ALWAYS_WANTED = patience.HEADERS | frozenset(
    {
        ":method",
        ":path",
        ":authority",
        "host",
        "upgrade",
        "content-type",
        "content-length",
        "x-request-priority",
        "priority",
        "x-policy-uid",
        "x-queue-ticket",
        PASSPORT_HEADER,
        "x-request-id",
        "x-stainless-retry-count",
    }
)
"""The headers that classification reads; the others are never decoded."""
KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})


@dataclass(frozen=True, slots=True)
class PoolRule:
    """Which requests one pool takes. Keys AND; None = any."""

    name: str
    path_prefix: str = "/"
    host: str | None = None
    route: str | None = None
    cluster: str | None = None
    model: re.Pattern[str] | None = None

    def takes(self, path: str, host: str, model: str | None, routed: tuple[str, str]) -> bool:
        """Whether it takes this request; `routed` is (route, cluster), `model` None = not known."""
        return (
            path.startswith(self.path_prefix)
            and (self.host is None or self._is_host(host.lower()))
            and (self.route is None or self.route == routed[0])
            and (self.cluster is None or self.cluster == routed[1])
            and (self.model is None or model is None or self.model.fullmatch(model) is not None)
        )

    def _is_host(self, host: str) -> bool:
        return host == self.host or host.rpartition(":")[0] == self.host


@dataclass(frozen=True, slots=True)
class TenantSource:
    """Where the tenant's name is: one header, a path in the metadata, else the API key's hash."""

    header: str = ""
    metadata: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassifyRules:
    """Everything that classification needs of the configuration."""

    pools: tuple[PoolRule, ...] = (PoolRule("default"),)
    methods: frozenset[str] = frozenset({"POST"})
    paths: tuple[str, ...] = ("/",)
    budgets_s: Mapping[Priority, float] = field(
        default_factory=lambda: {p: c.max_wait_s for p, c in default_classes().items()}
    )
    default_class: Priority = Priority.P1
    tenant: TenantSource = TenantSource(header="x-tenant-id")
    tenant_max_class: Mapping[str, Priority] = field(default_factory=dict)
    default_max_class: Priority = Priority.P0
    known_tenants: frozenset[str] = frozenset()
    orca_pools: frozenset[str] = frozenset()
    max_body_bytes: int = MIN_BODY_BUFFER
    """A held request keeps no more than this in Envoy, whatever length it claims."""

    @cached_property
    def wanted_headers(self) -> frozenset[str]:
        """Names of the headers that classification reads."""
        extra = {self.tenant.header} if self.tenant.header else set()
        if not self.tenant.header and not self.tenant.metadata:
            extra = set(KEY_HEADERS)
        return ALWAYS_WANTED | extra

    @cached_property
    def routed(self) -> bool:
        """Whether any pool asks for the route or the cluster."""
        return any(pool.route is not None or pool.cluster is not None for pool in self.pools)


def rules_of(config: Config) -> ClassifyRules:
    """The rules that a configuration asks for."""
    return ClassifyRules(
        pools=tuple(_pool_rule(pool.name, pool.match) for pool in config.pools),
        methods=frozenset(config.govern.methods),
        paths=config.govern.paths,
        budgets_s={p: c.max_wait_s for p, c in config.classes.by_priority().items()},
        default_class=Priority[config.default_class],
        tenant=_tenant_source(config.tenants.source),
        tenant_max_class={t: Priority[name] for t, name in config.tenants.max_class.items()},
        default_max_class=Priority[config.tenants.default_max_class],
        known_tenants=frozenset(config.tenants.named if config.tenants.known else ()),
        orca_pools=frozenset(pool.name for pool in config.pools if pool.load_reports.orca),
        max_body_bytes=config.body_buffer_bytes,
    )


def _pool_rule(name: str, match: MatchConfig) -> PoolRule:
    return PoolRule(
        name=name,
        path_prefix=match.path_prefix or "/",
        host=match.host.lower() if match.host is not None else None,
        route=match.route,
        cluster=match.cluster,
        model=re.compile(fnmatch.translate(match.model)) if match.model is not None else None,
    )


def _tenant_source(source: str) -> TenantSource:
    kind, _, rest = source.partition(":")
    if kind == "header":
        return TenantSource(header=rest.lower())
    return TenantSource(metadata=tuple(rest.split("/"))) if kind == "metadata" else TenantSource()
