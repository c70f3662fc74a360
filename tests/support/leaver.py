"""A client in a process of its own, so that it can vanish as real ones do.

    python -m tests.support.leaver http1|http2 URL BODY_FILE

Prints the answer as it comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import httpx2


def main() -> None:
    """POST the body, copy the answer to stdout."""
    version, url, body = sys.argv[1:]
    http2 = version == "http2"
    headers = {"content-type": "application/json"}
    content = Path(body).read_bytes()
    with (
        httpx2.Client(http1=not http2, http2=http2, timeout=600) as client,
        client.stream("POST", url, content=content, headers=headers) as answer,
    ):
        for chunk in answer.iter_raw():
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
