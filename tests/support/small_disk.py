"""A file system of one or two megabytes that can be filled; where that may not be mounted, a store
whose commits fail as on a full disk.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from policy_server.journal.sqlite.housekeeping import Step

SYS_ADMIN = 1 << 21  # CAP_SYS_ADMIN


class SmallDisk:
    """`path` is a folder on it. `on_step` belongs into the options of stores on it."""

    def __init__(self, path: Path, mounted: bool) -> None:
        self.path = path
        self.mounted = mounted
        self._full = False
        self._read_only = False

    def fill(self) -> None:
        """Not a byte is left."""
        self._full = True
        if self.mounted:
            with contextlib.suppress(OSError), (self.path / "filler").open("wb") as file:
                while True:
                    file.write(b"x" * 4096)
                    file.flush()

    def free(self) -> None:
        """There is room again."""
        self._full = False
        (self.path / "filler").unlink(missing_ok=True)

    def read_only(self, yes: bool) -> None:
        """It can be written, or not."""
        self._read_only = yes
        if self.mounted:
            how = f"remount,{'ro' if yes else 'rw'}"
            command = ["mount", "-o", how, str(self.path)]
            until = time.monotonic() + 20.0
            while subprocess.run(command, check=time.monotonic() > until).returncode:
                time.sleep(0.05)  # "busy": who was killed may still have files open

    def on_step(self, step: Step) -> None:
        """Fails where a disk would, when this one is none."""
        if self.mounted or step not in (Step.OPEN, Step.COMMIT):
            return
        if self._full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        if self._read_only:
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise error


def may_mount() -> bool:
    """Whether this process has CAP_SYS_ADMIN."""
    status = Path("/proc/self/status").read_text()
    return bool(int(re.findall(r"^CapEff:\s*(\w+)", status, re.M)[0], 16) & SYS_ADMIN)


def mount(path: Path, *options: str) -> bool:
    """Whether a tmpfs was mounted there; where it may be, it must."""
    if not may_mount():
        return False
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(path)]
    subprocess.run(command, check=True)
    return True


@contextlib.contextmanager
def small_disk(path: Path, size: str = "1m") -> Iterator[SmallDisk]:
    """The disk, at `path`."""
    path.mkdir()
    mounted = mount(path, f"size={size}", "mode=0700")
    try:
        yield SmallDisk(path, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)
