"""Work in the background that goes on whatever it meets.

A task that nobody waits for dies of its first exception without a word, and what it did is then
never done again: leases are not kept alive, nothing expires. Here its error is reported to the loop
(the log) and it begins again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Work = Callable[[], Awaitable[None]]

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


async def lasting(name: str, work: Work) -> None:
    """Do `work` until it returns or this is cancelled; the pause doubles while it keeps failing."""
    loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            return await work()
        except Exception as error:
            if loop.time() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            message = f"{name} broke off, and begins again in {pause_s:g} s"
            loop.call_exception_handler({"message": message, "exception": error})
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2.0)
