"""Writes log lines on a thread of its own, so that a full pipe never stops the event loop.

Whoever reads stderr may stall (a log agent that restarts, a paused terminal); a plain `write` would
then block every request. Here the loop only appends to a queue. At the bound further lines are
lost, and once the reader is back one line says how many.
"""

from __future__ import annotations

import queue
import threading
from typing import TextIO

MAX_LINES = 10_000  # some 2.5 MB; 15 s of the worst storm that the decision log lets through
BATCH_LINES = 500
CLOSE_TIMEOUT_S = 1.0  # a stalled reader must not hold up the shutdown


class LineWriter:
    """A bounded, non-blocking text sink in front of `stream`; looks like a file to structlog."""

    def __init__(self, stream: TextIO, max_lines: int = MAX_LINES) -> None:
        self._stream = stream
        self._max_lines = max_lines
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._refused = 0  # counted by whoever writes
        self._failed = 0  # counted by the thread, like `_told`
        self._told = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line (with its newline); beyond the bound it is lost and counted."""
        if self._queue.qsize() >= self._max_lines:
            self._refused += 1
        else:
            self._queue.put(line)

    def flush(self) -> None:
        """Nothing: lines go out as fast as the stream takes them."""

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is queued, waiting at most `timeout_s` for a slow stream."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        open_ = True
        while open_:
            lines = [self._queue.get()]
            while len(lines) < BATCH_LINES and not self._queue.empty():
                lines.append(self._queue.get())
            open_ = None not in lines
            self._emit([line for line in lines if line is not None])

    def _emit(self, lines: list[str]) -> None:
        lost = self._refused + self._failed
        if lost > self._told:
            count = lost - self._told
            lines.append(f'{{"level":"warning","event":"log_lines_lost","count":{count}}}\n')
        try:
            self._stream.write("".join(lines))
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone or the stream closed: nowhere to say so
            self._failed += len(lines)
        else:
            self._told = lost
