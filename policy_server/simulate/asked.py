"""What a user asks of the simulator, as plain values; light to import, for a fast --help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of any run; the first policy is the one in question."""

    policies: list[str]
    seed: int = 1
    report: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine as the command line names it (the words of `policy-server backend`)."""

    step_ms: float = 10.7
    seq_ms: float = 0.2
    prefill_tps: float = 30_000.0
    max_num_seqs: int = 64
    kv_tokens: int = 0  # 0 = no bound
    calibrate: Path | None = None
    plain: str = ""  # `servers:seconds` of an ordinary service


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """The traffic of a trace: how fast it is replayed, who its clients are."""

    speed: float = 1.0
    mix: str = "0:.2,1:.5,2:.3"
    tenants: int = 4
    retry: bool = False
    stream: bool = True
