"""Where one run keeps its files."""

from __future__ import annotations

import tempfile
from pathlib import Path


def fresh(directory: Path) -> Path:
    """A folder for one run. What ran before has left a journal, and the next one would take back
    its limit, its baselines and its leases."""
    return Path(tempfile.mkdtemp(dir=directory))
