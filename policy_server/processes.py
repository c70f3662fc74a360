"""This process and its children: finding Envoy, checking ports, children that die with us."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def find_envoy() -> str | None:
    """The path of the Envoy binary: on PATH, or beside this Python (a venv not activated)."""
    return shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))


TAKEN = "it is taken"


def port_taken(host: str, port: int) -> bool:
    """Whether a listener at this address would fail or, worse, share the port with another."""
    return port_trouble(host, port) is not None


def port_trouble(host: str, port: int) -> str | None:
    """Why a listener at this address would fail: `TAKEN`, or what the system says; None = it works.

    Envoy binds with SO_REUSEPORT and so would take half of another's connections; binding without
    that option tells.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror or str(error)
    troubles = [_trouble(family, address) for family, *_, address in found]
    if TAKEN in troubles or None not in troubles:  # else one of a name's addresses will do
        return TAKEN if TAKEN in troubles else troubles[0]
    return None


def _trouble(family: int, address: Any) -> str | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return TAKEN if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return None


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def first_taken(ports: Mapping[str, tuple[str, int]]) -> str | None:
    """The first label whose host and port is taken, or asked for twice."""
    seen: set[int] = set()
    for label, (host, port) in ports.items():
        if port in seen or port_taken(host, port):
            return label
        seen.add(port)
    return None


def raise_file_limit() -> None:
    """Lift the soft limit of open files to the hard one: each request is a socket. Children
    inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tied_to_us(command: Sequence[str]) -> list[str]:
    """The command, started so that the kernel kills it when we die, even by SIGKILL.

    A small Python asks for that and becomes the command. It is not a `preexec_fn`, because that
    forks a process whose other threads (gRPC's) may not survive it. Where there is no prctl
    (macOS) the command is on its own.
    """
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


_TIE = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
