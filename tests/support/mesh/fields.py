"""Fields of Envoy Gateway's objects, taken out as they are translated."""

from __future__ import annotations

import copy
from typing import Any

from tests.support.mesh.base import Plain

CLUSTER_BOUNDS = {
    "maxConnections": "max_connections",
    "maxPendingRequests": "max_pending_requests",
    "maxParallelRequests": "max_requests",
    "maxParallelRetries": "max_retries",
}


class Fields:
    """One object's fields; `close` raises when some were not taken."""

    def __init__(self, data: Plain, where: str) -> None:
        self._data = copy.deepcopy(data)
        self._where = where

    def take(self, *path: str) -> Any:
        """The value at a path, which must be there."""
        here = self._data
        for key in path[:-1]:
            here = here[key]
        return here.pop(path[-1])

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return name in self._data

    def close(self) -> None:
        """Everything was taken."""
        left = _leaves(self._data)
        assert not left, f"{self._where}: nobody reads {left}"


def _leaves(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: inner for key, value in data.items() if (inner := _leaves(value)) != {}}
    return data


def retry(asked: Fields) -> Plain:
    """A retry policy."""
    found = {
        "num_retries": asked.take("numRetries"),
        "retry_on": ",".join(asked.take("retryOn", "triggers")),
        "retry_back_off": {
            "base_interval": seconds(asked.take("perRetry", "backOff", "baseInterval")),
            "max_interval": seconds(asked.take("perRetry", "backOff", "maxInterval")),
        },
    }
    asked.close()
    return found


def breakers(bounds: Plain) -> Plain:
    """Circuit breakers."""
    return {"thresholds": [{CLUSTER_BOUNDS[key]: value for key, value in bounds.items()}]}


def seconds(duration: str) -> str:
    """A Gateway API duration as Envoy writes it."""
    if duration.endswith("ms"):
        return f"{int(duration[:-2]) / 1000:g}s"
    return duration
