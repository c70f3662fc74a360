"""Runs a command for which everything but some folders is read-only, as in a hardened container:

    python read_only_root.py FOLDER… -- COMMAND…

The kernel refuses it and its children every write elsewhere, whoever they are (Landlock, Linux
5.13; no privilege needed). Exit code 77 when this kernel has none.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38
WRITES = {1: (1, *range(4, 13)), 2: (13,), 3: (14,)}
"""Version of the interface → the bits of `linux/landlock.h` that it brings: write a file, remove
and make entries of every kind; move between folders; truncate."""
NOT_HERE = 77


def available() -> bool:
    """Whether this kernel can."""
    return _version() >= 1


def restrict(folders: list[str]) -> None:
    """From now on this process and its children write in these folders only."""
    bits = [bit for version, added in WRITES.items() if version <= _version() for bit in added]
    writes = sum(1 << bit for bit in bits)
    attributes = struct.pack("Q", writes)
    ruleset = _call(CREATE_RULESET, attributes, len(attributes), 0)
    for folder in folders:
        here = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        _call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", writes, here), 0)
        os.close(here)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    _call(RESTRICT_SELF, ruleset, 0)


def _version() -> int:
    return int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, 1))


def _call(number: int, *arguments: int | bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    answer = int(libc.syscall(number, *arguments))
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"landlock, system call {number}")
    return answer


def main() -> None:
    """See the module's header."""
    cut = sys.argv.index("--")
    if not available():
        sys.exit(NOT_HERE)
    restrict(sys.argv[1:cut])
    os.execv(sys.argv[cut + 1], sys.argv[cut + 1 :])


if __name__ == "__main__":
    main()
