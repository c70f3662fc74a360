"""The configuration's pools: which requests, under which limit, in front of which back ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from policy_server.config_types import (
    HoldSeconds,
    Seconds,
    Section,
    Url,
    absolute_path,
    label,
)
from policy_server.core.ramp import RAMP_S


class MatchConfig(Section):
    """Which requests a pool takes; keys AND, None = any. `model` is a glob."""

    path_prefix: Annotated[str, AfterValidator(absolute_path)] | None = "/"
    host: str | None = None
    route: str | None = None
    cluster: str | None = None
    model: str | None = None

    def covers(self, other: MatchConfig) -> bool:
        """Whether every request that `other` takes is taken by this match as well."""
        exact = all(
            mine is None or mine == theirs
            for mine, theirs in (
                (self.host, other.host),
                (self.route, other.route),
                (self.cluster, other.cluster),
                (None if self.model == "*" else self.model, other.model),
            )
        )
        return exact and (other.path_prefix or "/").startswith(self.path_prefix or "/")


class LimitConfig(Section):
    """The limit of a pool, in seats. An `initial` that is not given follows a lower `max`."""

    algorithm: Literal["vegas", "gradient", "aimd", "fixed"] = "vegas"
    initial: float = Field(default=16, gt=0)
    min: float = Field(default=1, ge=1)
    max: float = Field(default=1000, le=1_000_000)

    @model_validator(mode="before")
    @classmethod
    def _initial_fits(cls, data: object) -> object:
        if isinstance(data, dict) and "initial" not in data:
            bounds = {key: data.get(key, cls.model_fields[key].default) for key in ("min", "max")}
            if all(isinstance(bound, int | float) for bound in bounds.values()):
                initial = cls.model_fields["initial"].default
                return {**data, "initial": max(bounds["min"], min(initial, bounds["max"]))}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.initial <= self.max:
            raise ValueError(
                f"needs min <= initial <= max, but min is {self.min:g}, initial {self.initial:g}, "
                f"max {self.max:g}; change the one that is out of order"
            )
        return self


class SloConfig(Section):
    """Targets in seconds, None = none: time to first token, time per output token."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None


class ObserveConfig(Section):
    """Budget of the sampled observer: messages per second over a pool's streams."""

    max_messages_per_s: float = Field(default=500, ge=0)


MAX_SCRAPE_INTERVAL_S = 3.0  # a report is forgotten after 4 s; less often is half the time blind


class LoadReportsConfig(Section):
    """What the engines say of themselves: ORCA headers, `/metrics` pages to scrape."""

    orca: bool = True
    scrape: tuple[Url, ...] = ()
    interval_s: Annotated[Seconds, Field(le=MAX_SCRAPE_INTERVAL_S)] = 1.0


class BackendsConfig(Section):
    """Who tells which backends are ready: probe URLs, Envoy's admin, or a fixed count.

    `ramp_s`: after so many seconds a new backend carries its full share of the limit.
    """

    probe: tuple[Url, ...] = ()
    envoy_admin: Url | None = None
    count: int | None = Field(default=None, ge=0)
    ramp_s: float = Field(default=RAMP_S, ge=0, le=3600)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = {"probe": self.probe, "envoy_admin": self.envoy_admin, "count": self.count}
        given = [key for key, value in named.items() if value not in (None, ())]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} may disagree on who is ready; keep one")
        return self

    @property
    def known(self) -> bool:
        """Whether anything tells that there are no backends, so that requests may wait for one."""
        return bool(self.probe) or self.envoy_admin is not None or self.count is not None


class PoolConfig(Section):
    """One pool of model servers under one limit."""

    name: Annotated[str, AfterValidator(label)] = "default"
    match: MatchConfig = MatchConfig()
    limit: LimitConfig = LimitConfig()
    slo: SloConfig = SloConfig()
    observe: ObserveConfig = ObserveConfig()
    load_reports: LoadReportsConfig = LoadReportsConfig()
    backends: BackendsConfig = BackendsConfig()
    no_backend_wait_s: HoldSeconds = 300
    ca_file: Path | None = None  # of https pages and probes
