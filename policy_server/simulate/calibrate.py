"""Fits the engine model to measurements: least squares of inter-token time over batch size."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from policy_server.simulate.engine import EngineParams
from policy_server.simulate.errors import InputError


@dataclass(frozen=True, slots=True)
class Fit:
    """`t = step_s + seq_s · batch`; `error` = root mean square error over mean inter-token time."""

    step_s: float
    seq_s: float
    error: float
    points: int

    def apply(self, params: EngineParams) -> EngineParams:
        """The same engine with the measured step."""
        return replace(params, step_s=self.step_s, seq_s=self.seq_s)


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """Least squares over (batch, inter-token seconds). Raises InputError when it has no answer.

    The part below zero of either coefficient is noise (an engine does not get faster with its
    batch): it is clamped and the other one is fitted alone.
    """
    if len({batch for batch, _ in points}) < 2:
        raise InputError("calibration needs at least two different batch sizes")
    count = len(points)
    mean_b = sum(b for b, _ in points) / count
    mean_t = sum(t for _, t in points) / count
    slope = sum((b - mean_b) * (t - mean_t) for b, t in points) / sum(
        (b - mean_b) ** 2 for b, _ in points
    )
    base = mean_t - slope * mean_b
    if slope < 0:
        slope, base = 0.0, mean_t
    elif base < 0:
        slope, base = sum(b * t for b, t in points) / sum(b * b for b, _ in points), 0.0
    residual = math.sqrt(sum((base + slope * b - t) ** 2 for b, t in points) / count)
    return Fit(step_s=base, seq_s=slope, error=residual / mean_t, points=count)


def read_points(path: Path) -> list[tuple[float, float]]:
    """Rows of `batch,inter_token_s`, header optional. Raises InputError with line and reason."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _points(path, file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8: {error}") from error


def _points(path: Path, file: Iterable[str]) -> list[tuple[float, float]]:
    points = []
    for line, row in enumerate(csv.reader(file), start=1):
        if not row or (line == 1 and not _is_number(row[0])):
            continue
        if len(row) < 2 or not (_is_number(row[0]) and _is_number(row[1])):
            raise InputError(f"{path}:{line}: expected batch,inter_token_s, got {row!r}")
        batch, seconds = float(row[0]), float(row[1])
        if batch < 1 or seconds <= 0:
            raise InputError(f"{path}:{line}: batch must be ≥ 1 and the time > 0 s")
        points.append((batch, seconds))
    return points


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
