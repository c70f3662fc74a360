"""Files for our eyes only, replaced or made in one step: whoever looks finds a whole one.

A draft beside the file is written, synced and moved into its place; the folder is synced as well,
so that a power cut takes back nothing that was said to be there.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MEMORY = Path("/dev/shm")  # noqa: S108 - what is ours there nobody else may open
"""A folder that no disk is behind."""


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


def open_folder(folder: Path) -> str | None:
    """What is wrong with a folder of ours that we did not make, for people; None = nothing.

    Others may look into one that is somebody else's, as a volume is in a pod: that is not in our
    hands, and our files in it are closed to them.
    """
    found = folder.stat()
    others = stat.S_IMODE(found.st_mode) & 0o007
    if others & 0o002 and not found.st_mode & stat.S_ISVTX:
        return f"{folder}: everybody on this machine can put files there; run: chmod o-rwx {folder}"
    if others and os.geteuid() in (0, found.st_uid):
        return f"{folder}: everybody on this machine can look into it; run: chmod o-rwx {folder}"
    return None


def replace(path: Path, data: bytes) -> None:
    """The file has this content from now on."""
    with draft(path) as (file, new):
        _write(file, data)
        new.replace(path)
    sync_folder(path.parent)


def create(path: Path, data: bytes) -> None:
    """The file has this content unless it exists: of several processes one is first."""
    with draft(path) as (file, new):
        _write(file, data)
        with suppress(FileExistsError):
            os.link(new, path)
    sync_folder(path.parent)


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system can: then it is as safe as it gets
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
