"""Where the gateway lays what it generates: Envoy's bootstrap, the configurations in force.

They belong in the data directory. Its disk may be full or read-only, at a start or when Envoy has
to be started again: the journal puts up with that, and so does the gateway. These files are made
anew each time, so nothing is lost with them in memory.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from policy_server import private_file
from policy_server.private_file import MEMORY

DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What a disk says that is in trouble, rather than a folder that is the wrong one."""


class Shelf:
    """Files by their names, for our eyes only."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._spare: Path | None = None

    def put(self, name: str, data: bytes) -> Path:
        """Replace a file in one step; where it lies. Raises OSError."""
        try:
            private_file.replace(self._folder / name, data)
            return self._folder / name
        except OSError as error:
            if error.errno not in DISK_TROUBLE:
                raise
            spare = self._in_memory(error.strerror)
        private_file.replace(spare / name, data)
        return spare / name

    def _in_memory(self, trouble: str | None) -> Path:
        if self._spare is None:
            where = MEMORY if os.access(MEMORY, os.W_OK) else None
            self._spare = Path(tempfile.mkdtemp(prefix="policy-server-", dir=where))
            self._say(f"{self._folder}: {trouble}; what Envoy starts from lies in {self._spare}")
        return self._spare

    def clear(self) -> None:
        """Leave nothing in memory."""
        if self._spare is not None:
            shutil.rmtree(self._spare, ignore_errors=True)
