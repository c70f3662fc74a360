"""Log lines: JSON to a pipe, readable columns to a terminal, never a secret.

Only fields on a list are written. A header, a body or a token can't slip out by a careless
keyword: a field that is not on the list is left out and its *name* appears under `unlisted`.
Strings that clients choose (request ids) are cut and stripped of control characters.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from policy_server.telemetry.line_writer import LineWriter

MAX_VALUE_CHARS = 200

EVENT_FIELDS = ("event", "level", "ts", "logger", "detail", "exception")
DECISION_FIELDS = (
    *("uid", "request_id", "pool", "class", "outcome", "reason", "wait_ms", "retry_after_s"),
    *("held_s", "limit", "previous", "suppressed"),
    *("tenant", "budget_s", "predicted_wait_s", "should_retry", "returning"),
    *("kind", "job", "attempts"),
)
SERVER_FIELDS = (
    *("version", "pid", "wiring", "grpc", "http", "port", "pools", "signal", "exit_code"),
    *("config", "config_digest", "file", "path", "error", "fix", "state", "journal"),
    *("node", "leases", "lag_ms", "seconds", "count"),
)
ALLOWED_FIELDS = frozenset(EVENT_FIELDS + DECISION_FIELDS + SERVER_FIELDS)


def configure_logging(stream: TextIO | None = None, *, console: bool | None = None) -> LineWriter:
    """Send structlog and the standard library's warnings to `stream` (default stderr).

    `console` None = columns if the stream is a terminal, else JSON. Call `close()` on the result
    last of all, or the final lines may stay behind.
    """
    stream = stream or sys.stderr
    writer = LineWriter(stream)
    structlog.configure(
        processors=_processors(stream.isatty() if console is None else console),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_LibraryHandler()], level=logging.WARNING, force=True)
    return writer


def get_logger() -> FilteringBoundLogger:
    """A logger as configured now; its fields must be on `ALLOWED_FIELDS`."""
    logger: FilteringBoundLogger = structlog.get_logger().bind()
    return logger


def _processors(console: bool) -> list[Processor]:
    renderer: Processor = structlog.dev.ConsoleRenderer() if console else _render_json
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        keep_known_fields,
        renderer,
    ]


def keep_known_fields(
    logger: object, method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """The processor that holds the list: unknown fields go, strings are made harmless."""
    kept: dict[str, Any] = {}
    unlisted = []
    for name, value in fields.items():
        if name not in ALLOWED_FIELDS:
            unlisted.append(name)
        elif isinstance(value, str) and name != "exception":
            kept[name] = _harmless(value)
        else:
            kept[name] = value
    if unlisted:
        kept["unlisted"] = sorted(unlisted)
    return kept


def _harmless(text: str) -> str:
    if len(text) > MAX_VALUE_CHARS:
        text = text[:MAX_VALUE_CHARS] + "…"
    # On a terminal an escape sequence could rewrite the screen.
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _render_json(logger: object, method: str, fields: MutableMapping[str, Any]) -> str:
    first = {name: fields.pop(name, None) for name in ("ts", "level", "event")}
    return json.dumps({**first, **fields}, default=str, separators=(",", ":"))


class _LibraryHandler(logging.Handler):
    """Warnings of asyncio, grpc and aiohttp in the same shape as ours.

    Of an exception only its type and the code lines are kept: the message of a parser's error
    quotes what it could not parse, and that may be a header.
    """

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, str] = {"logger": record.name, "detail": record.getMessage()}
        if record.exc_info and record.exc_info[0]:
            frames = "".join(traceback.format_tb(record.exc_info[2]))
            fields["exception"] = f"{frames}{record.exc_info[0].__name__}"
        get_logger().log(max(record.levelno, logging.WARNING), "library", **fields)
