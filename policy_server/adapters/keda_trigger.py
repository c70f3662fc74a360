"""What a trigger's metadata asks for, and the words for what is wrong with it.

    pool               which pool; may be left out when there is only one
    waitingPerReplica  aim at so many held requests per replica (2)       metricType AverageValue
    jobsPerReplica     aim at so many waiting jobs per replica            metricType AverageValue
    utilization        aim at so much of the limit in use, 0 to 1         metricType Value

One of the three; none = waitingPerReplica. KEDA hands on the trigger's metadata as it is written,
its own keys too (how it reaches us); any other key is a mistake, as it would silently mean the
default. `poolFromEnv` and the like arrive with the value that KEDA found.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policy_server.core.demand import Demand

DEFAULT_METRIC = "waitingPerReplica"
DEFAULT_TARGET = 2.0
_VALUES: Mapping[str, Callable[[Demand], float]] = {
    "waitingPerReplica": lambda demand: float(demand.waiting),
    "jobsPerReplica": lambda demand: float(demand.jobs),
    "utilization": lambda demand: demand.utilization,
}
_KEYS = ("pool", *_VALUES)
_KEDAS = (
    "scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey",
    "tlsCertFile",
)  # fmt: skip
"""Of KEDA's external scaler, up to 2.20; older ones take the certificates here."""
_FROM_ENV = "FromEnv"
_LOOKS_LIKE = 0.8


class TriggerError(Exception):
    """The metadata can't be obeyed; the text says which key, and what to write. `unknown_pool`:
    there is no such pool, rather than no sense in it."""

    def __init__(self, text: str, unknown_pool: bool = False) -> None:
        super().__init__(text)
        self.unknown_pool = unknown_pool


@dataclass(frozen=True, slots=True)
class Trigger:
    """One metric of one pool and what to aim at."""

    pool: str
    metric: str
    target: float

    @property
    def name(self) -> str:
        """Of the metric, as Kubernetes may have it in a path: `waiting-per-replica-chat`."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.metric)
        return re.sub(r"[^a-z0-9-]+", "-", f"{words}-{self.pool}".lower())

    def value(self, demand: Demand) -> float:
        """How it is now: for the whole pool; whoever scales divides it by the replicas."""
        return _VALUES[self.metric](demand)


def read_trigger(metadata: Mapping[str, str], pools: Sequence[str]) -> Trigger:
    """Raises TriggerError."""
    metadata = _ours(metadata)
    asked = [metric for metric in _VALUES if metric in metadata]
    if len(asked) > 1:
        raise TriggerError(f"metadata names {' and '.join(asked)}; write one trigger for each")
    metric = asked[0] if asked else DEFAULT_METRIC
    target = _target(metric, metadata[metric]) if asked else DEFAULT_TARGET
    return Trigger(_pool(metadata.get("pool", ""), pools), metric, target)


def _ours(metadata: Mapping[str, str]) -> dict[str, str]:
    """What is meant for us, by its plain name; what is written out goes first."""
    given = {key.removesuffix(_FROM_ENV): value for key, value in metadata.items()}
    given.update(metadata)
    for key in metadata:
        if key.removesuffix(_FROM_ENV) not in _KEYS + _KEDAS:
            raise TriggerError(_unknown(key))
    return {key: given[key] for key in _KEYS if key in given}


def _unknown(key: str) -> str:
    lower = {known.lower(): known for known in _KEYS}
    near = difflib.get_close_matches(key.lower(), lower, 1, _LOOKS_LIKE)
    guess = f"did you mean {lower[near[0]]!r}? " if near else ""
    return f"metadata {key!r} is not known; {guess}known are {', '.join(_KEYS)}"


def _pool(name: str, pools: Sequence[str]) -> str:
    if not name and len(pools) == 1:
        return pools[0]
    known = ", ".join(pools)
    if not name:
        raise TriggerError(f"metadata names no pool, and there are several; write pool: {known}")
    if name not in pools:
        raise TriggerError(f"there is no pool {name!r}; there is: {known}", unknown_pool=True)
    return name


def _target(metric: str, text: str) -> float:
    most = 1.0 if metric == "utilization" else 1e9
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not 0.001 <= target <= most:  # Kubernetes counts in thousandths
        example = '"0.8" for 80 % of the limit' if most == 1.0 else '"2"'
        raise TriggerError(f"metadata {metric}: {text!r} is no target; write for example {example}")
    return target
