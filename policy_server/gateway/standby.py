"""The child's side of the hand-over: a policy server that has imported everything and waits.

Starting Python and importing gRPC takes most of a second; that much a crash must not cost. So a
second process waits with all of it done. It says `standby` on stdout, takes over on the line
`go`, says `ready`, and ends when the supervisor's end of its stdin closes. While it serves, lines
on stdin name the Envoy that lives.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable

STANDBY, GO, READY = "standby", "go", "ready"
NODE = "envoy "
NodeListener = Callable[[str], object]


def node(name: str) -> str:
    """The line that says which Envoy lives; its earlier lives are dead."""
    return NODE + name


class Supervisor:
    """Whoever started us, at the other end of stdin.

    Read without Python's buffer: a thread that waits inside it would stop the interpreter's end.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._nodes: queue.SimpleQueue[str] = queue.SimpleQueue()

    def wait_for_go(self) -> bool:
        """Blocks until it is our turn; False when the supervisor is gone."""
        say(STANDBY)
        return self._line() == GO

    def follow(self) -> None:
        """Ends this process when stdin closes. The kernel does that too where it can (Linux)."""
        threading.Thread(target=self._follow, daemon=True).start()

    def on_node(self, listener: NodeListener) -> None:
        """`listener` gets each name of the living Envoy, on a thread; those said before, too."""
        threading.Thread(target=self._pass_on, args=(listener,), daemon=True).start()

    def _follow(self) -> None:
        while line := self._line():
            if line.startswith(NODE):
                self._nodes.put(line.removeprefix(NODE))
        os._exit(1)

    def _pass_on(self, listener: NodeListener) -> None:
        while True:
            with contextlib.suppress(RuntimeError):  # its loop is closed, the process about to end
                listener(self._nodes.get())

    def _line(self) -> str:
        """The next line, "" at the end."""
        while b"\n" not in self._rest:
            chunk = os.read(sys.stdin.fileno(), 4096)
            if not chunk:
                return ""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


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
