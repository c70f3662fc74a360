"""The first lines of the process: `policy-server …`, `python -m policy_server …`.

Importing the rest takes a good part of a second, and until the server handles SIGHUP the kernel
would end the process with it. So it is blocked before anything else: a reload that is asked for in
that time waits until the server can take it.
"""

from __future__ import annotations

import signal
import sys

RELOADED = {"serve", "gateway"}
"""The commands that SIGHUP reloads; it ends the others, as ever."""


def main() -> None:
    """The console script."""
    if RELOADED & set(sys.argv[1:2]):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from policy_server.cli import main as run  # noqa: PLC0415 - see above

    run()


if __name__ == "__main__":
    main()
