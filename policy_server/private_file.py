"""Files for our eyes only, replaced or made in one step: whoever looks finds a whole one.

A draft beside the file is written, synced and moved into its place; the folder is synced as well,
so that a power cut takes back nothing that was said to be there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def draft(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """An empty file beside `path` and where it lies; gone afterwards unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file, new
    finally:
        new.unlink(missing_ok=True)


def open_to_all(mode: int) -> bool:
    """Whether everybody on the machine can use a file of this mode. Its group may: Kubernetes
    gives a volume the pod's own (fsGroup) and lets it read and write all that is in it."""
    return bool(mode & 0o007)


def replace(path: Path, data: bytes) -> None:
    """The file has this content from now on."""
    with draft(path) as (file, new):
        _write(file, data)
        new.replace(path)
    _sync_folder(path.parent)


def create(path: Path, data: bytes) -> None:
    """The file has this content unless it exists: of several processes one is first."""
    with draft(path) as (file, new):
        _write(file, data)
        with suppress(FileExistsError):
            os.link(new, path)
    _sync_folder(path.parent)


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system can: then it is as safe as it gets
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
