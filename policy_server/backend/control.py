"""The emulator's runtime switches for tests: `POST /control`, read back by `GET /control`.

Keys: every field of EngineParams (`max_num_seqs`, `step_ms`, …) · `stall_s` seconds without a
step · `fail` an HTTP status that generating requests get from now on, null to end it.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from policy_server.backend.call import Call
from policy_server.backend.driver import EngineDriver
from policy_server.backend.params import EngineParams

MAX_STALL_S = 3600.0


class Control:
    """Applies changes to the driver and its engine; a bad request changes nothing."""

    def __init__(self, driver: EngineDriver[Call]) -> None:
        self._driver = driver
        self.fail_status: int | None = None

    def apply(self, changes: object) -> None:
        """Apply one decoded JSON body. Raises ValueError with one line that names the key."""
        if not isinstance(changes, dict):
            raise ValueError("the body must be a JSON object")
        known = {item.name for item in fields(EngineParams)}
        for key in changes:
            if key not in known | {"stall_s", "fail"}:
                raise ValueError(f"unknown key {key!r}; known: {sorted(known)}, stall_s, fail")
        engine_changes: dict[str, Any] = {k: v for k, v in changes.items() if k in known}
        params = replace(self._driver.engine.params, **engine_changes)
        stall_s = _stall(changes.get("stall_s", 0))
        fail = _status(changes["fail"]) if "fail" in changes else self.fail_status
        self._driver.engine.params = params
        self.fail_status = fail
        if stall_s:
            self._driver.stall(stall_s)

    def state(self) -> dict[str, object]:
        """Parameters and the engine's own counts. `busy_s`: seconds of all steps planned so far;
        `lost_s`: seconds that the event loop was too late to make up for."""
        engine = self._driver.engine
        return {
            "params": asdict(engine.params),
            "fail": self.fail_status,
            "running": len(engine.running),
            "waiting": len(engine.waiting),
            "kv_used": engine.kv_used,
            "steps_total": engine.steps_total,
            "preemptions_total": engine.preemptions_total,
            "busy_s": engine.busy_s,
            "lost_s": self._driver.lost_s,
        }


def _stall(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"stall_s must be a number of seconds, not {value!r}")
    if not 0 <= value <= MAX_STALL_S:
        raise ValueError(f"stall_s must be between 0 and {MAX_STALL_S:g}, not {value!r}")
    return float(value)


def _status(value: object) -> int | None:
    if value in (None, "", False):
        return None
    try:
        status = int(str(value))
    except ValueError:
        status = 0
    if not 400 <= status <= 599:
        raise ValueError(f"fail must be an HTTP status from 400 to 599 or null, not {value!r}")
    return status
