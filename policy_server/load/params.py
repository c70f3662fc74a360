"""Parameters of a load run, validated once; every error is one line that names the option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

DEFAULT_PATH = "/v1/chat/completions"
PRIORITIES = ("0", "1", "2")
MAX_REQUESTS = 5_000_000
"""Every request leaves a record of about 200 bytes."""


@dataclass(frozen=True, slots=True)
class LoadParams:
    """One run. Raises ValueError with one clear line.

    url            base URL, or the full URL of one of the supported paths
    rate           requests per second, Poisson arrivals
    seconds        how long requests are sent
    warmup_s       the measured window is [warmup_s, seconds]
    drain_s        longest wait for answers after the last request was sent
    mix            weight of each value of `x-request-priority` (empty = no header)
    tenants        weight of each value of `x-tenant-id` (empty = no header)
    tokens, sigma  answer length: lognormal with this mean, sigma of its logarithm; 0 = all equal
    prompt_tokens  prompt length, about 4 characters each
    retry          retry like the official SDKs: twice, honouring Retry-After
    timeout_s      longest time for one attempt
    headers        sent with every request
    """

    url: str
    rate: float
    seconds: float
    mix: Mapping[str, float] = field(default_factory=dict)
    tenants: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 100
    sigma: float = 0.0
    prompt_tokens: int = 64
    stream: bool = False
    retry: bool = False
    seed: int = 1
    warmup_s: float = 0.0
    drain_s: float = 60.0
    timeout_s: float = 600.0
    model: str = "emulated-7b"
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _full_url(self.url))
        _above(self.rate, "--rate")
        _above(self.seconds, "--seconds")
        _above(self.timeout_s, "timeout_s")
        _at_least(self.tokens, 1, "--tokens")
        _at_least(self.prompt_tokens, 1, "prompt_tokens")
        _at_least(self.sigma, 0, "--sigma")
        _at_least(self.warmup_s, 0, "--warmup")
        _at_least(self.drain_s, 0, "drain_s")
        if self.warmup_s >= self.seconds:
            raise ValueError(f"--warmup {self.warmup_s:g} must be shorter than --seconds")
        if self.rate * self.seconds > MAX_REQUESTS:
            raise ValueError(f"--rate x --seconds must be at most {MAX_REQUESTS} requests")

    @property
    def path(self) -> str:
        """Path part of the URL."""
        return urlsplit(self.url).path


def parse_mix(text: str) -> dict[str, float]:
    """Read `0:.2,1:.5,2:.3` (also `P0:…`). Raises ValueError with one line."""
    mix: dict[str, float] = {}
    for name, weight in parse_weights(text, "--mix").items():
        priority = name.removeprefix("P").removeprefix("p")
        if priority not in PRIORITIES:
            raise ValueError(f"--mix: unknown class {name!r}; the classes are 0, 1 and 2")
        mix[priority] = mix.get(priority, 0.0) + weight
    return mix


def parse_weights(text: str, option: str) -> dict[str, float]:
    """Read `name:weight,name:weight`; weights are relative. Raises ValueError with one line."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, separator, number = part.strip().rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not separator or not name or not math.isfinite(weight) or weight < 0:
            raise ValueError(f"{option}: {part.strip()!r} is not name:weight, as in a:.9,b:.1")
        weights[name] = weight
    if sum(weights.values()) <= 0:
        raise ValueError(f"{option}: at least one weight must be above 0")
    return weights


def _full_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"--url {url!r} is not a URL like http://127.0.0.1:10000")
    path = parts.path if parts.path not in ("", "/") else DEFAULT_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _above(value: float, option: str) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{option} must be above 0, not {value:g}")


def _at_least(value: float, least: float, option: str) -> None:
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{option} must be at least {least:g}, not {value:g}")
