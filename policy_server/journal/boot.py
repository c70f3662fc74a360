"""Which boot of the machine this is: monotonic times of one boot go on in the next process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def this_boot() -> str:
    """An id of this boot; "" where the system tells none, and then no boot is like another."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
