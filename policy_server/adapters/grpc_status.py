"""How a gRPC answer ended: its HTTP status is 200 whatever happened, the word is in `grpc-status`.

    8, 14, 13, 4    429, 503, 500, 504: the model server is too busy, away, broken or too slow
    any other but 0  400: an error of the call, told as fast as it likes. The slot is free, and
                    nothing is learned of it

The header stands in the trailers, or, where there is no body, among the headers.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "grpc-status"
OK = "0"
_UPSTREAM_ERRORS = {"8": 429, "14": 503, "13": 500, "4": 504}
_OTHER = 400


def told_status(status: int, *told: Mapping[str, str]) -> int:
    """The HTTP status that says of a 2xx what `told` (headers, trailers) says of the call."""
    if not 200 <= status < 300:
        return status
    for headers in told:
        said = headers.get(HEADER, OK).strip()
        if said != OK:
            return _UPSTREAM_ERRORS.get(said, _OTHER)
    return status
