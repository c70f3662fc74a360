"""Parameters of the emulator, validated once, with the reason for each default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import get_type_hints

MAX_SLOTS = 100_000


@dataclass(frozen=True, slots=True)
class EngineParams:
    """The engine's arithmetic: step time = step_ms + seq_ms · batch + prefill tokens / prefill_tps.

    The defaults fit a public sweep of a 7B model on one H100 (64 sequences: 2,615 tokens/s here,
    2,623 measured).

    max_num_seqs  sequences that run at once (slots)
    kv_tokens     tokens of KV cache, shared by all that run; overflow preempts the newest
    step_ms       milliseconds of every step, whatever its batch
    seq_ms        milliseconds that each sequence of the batch adds
    prefill_tps   prompt tokens computed per second
    step_tokens   tokens that one step may compute (chunked prefill; decode comes first)
    """

    max_num_seqs: int = 64
    kv_tokens: int = 400_000
    step_ms: float = 10.7
    seq_ms: float = 0.2
    prefill_tps: float = 30_000.0
    step_tokens: int = 2048

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("max_num_seqs", "kv_tokens", "step_ms", "prefill_tps", "step_tokens"):
            _require(getattr(self, name) > 0, f"{name} must be above 0")
        _require(self.seq_ms >= 0, "seq_ms must not be negative")
        _require(self.max_num_seqs <= MAX_SLOTS, f"max_num_seqs must be at most {MAX_SLOTS}")


@dataclass(frozen=True, slots=True)
class BackendParams:
    """The emulator as a server.

    cold_start_s  seconds from the start during which everything answers 503 (model loading)
    orca          send an ORCA load report when the request asks for one, as vLLM does
    model         name listed by /v1/models
    only_model    requests that name another one are answered 404, as vLLM does
    """

    engine: EngineParams = field(default_factory=EngineParams)
    cold_start_s: float = 0.0
    orca: bool = False
    model: str = "emulated-7b"
    only_model: bool = False

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.cold_start_s) and self.cold_start_s >= 0,
            "cold_start_s must not be negative",
        )


def check_types(params: EngineParams) -> None:
    """Raise ValueError naming the field whose value is not a finite number of its type.

    Needed because values also come from JSON (`POST /control`). A bool is not a number here.
    """
    hints = get_type_hints(type(params))
    for item in fields(params):
        value = getattr(params, item.name)
        whole = hints[item.name] is int
        kinds = (int,) if whole else (int, float)
        fits = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
        _require(fits, f"{item.name} must be a {'whole ' if whole else ''}number, not {value!r}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
