"""The child's side of the hand-over: a policy server that has imported everything and waits.

Starting Python and importing gRPC takes most of a second; that much a crash must not cost. So a
second process waits with all of it done. It says `standby` on stdout, takes over on the line
`go`, says `ready`, and ends when the supervisor's end of its stdin closes.
"""

from __future__ import annotations

import os
import sys
import threading

STANDBY, GO, READY = "standby", "go", "ready"


def wait_for_go() -> bool:
    """Blocks until it is our turn; False when the supervisor is gone."""
    say(STANDBY)
    return sys.stdin.readline().strip() == GO


def end_with_supervisor() -> None:
    """Ends this process when stdin closes. The kernel does that too where it can (Linux)."""
    threading.Thread(target=_watch_stdin, daemon=True).start()


def _watch_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def say_ready() -> None:
    """Traffic may come. What is printed from now on goes to stderr: nobody reads the pipe."""
    say(READY)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def say(word: str) -> None:
    """One word to the supervisor; nobody may be listening any more."""
    try:
        print(word, flush=True)
    except OSError:
        os._exit(1)
