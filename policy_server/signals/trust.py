"""Whose word an `https` page or probe is believed by: the CAs of a file, or those of the system."""

from __future__ import annotations

import os
import ssl


class Trust:
    """The contexts of the files named so far; a file that is replaced is read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ssl.SSLContext]] = {}

    def of(self, ca_file: str | None) -> ssl.SSLContext | bool:
        """What aiohttp's `ssl` wants; None = the system's own. OSError when the file is of no
        use."""
        if ca_file is None:
            return True
        written = os.stat(ca_file).st_mtime_ns
        at, context = self._known.get(ca_file, (0, None))
        if context is None or at != written:
            context = ssl.create_default_context(cafile=ca_file)
            self._known[ca_file] = written, context
        return context
