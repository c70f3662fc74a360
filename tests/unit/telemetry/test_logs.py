"""What a log line looks like, and what never gets into one."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest
import structlog

from policy_server.telemetry.line_writer import LineWriter
from policy_server.telemetry.logs import MAX_VALUE_CHARS, configure_logging, get_logger


class Output:
    """Everything written since, once `lines` is asked for."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.writer = configure_logging(self.stream, console=False)

    def lines(self) -> list[dict[str, object]]:
        self.writer.close(timeout_s=30)
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def output() -> Iterator[Output]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield Output()
    structlog.reset_defaults()
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_is_json_with_time_and_level_first(output: Output) -> None:
    get_logger().info("started", version="1.2.3", pools=["chat"])
    (line,) = output.lines()
    assert list(line) == ["ts", "level", "event", "version", "pools"]
    assert line["level"] == "info"


def test_a_field_that_is_not_listed_is_named_but_never_shown(output: Output) -> None:
    get_logger().info("started", authorization="Bearer sk-secret", headers={"a": "sk-secret"})
    (line,) = output.lines()
    assert line["unlisted"] == ["authorization", "headers"]
    assert "sk-secret" not in output.stream.getvalue()


def test_client_strings_can_neither_grow_nor_steer_a_terminal(output: Output) -> None:
    get_logger().info("request", request_id="\x1b[2Jx\n" + "y" * 10_000)
    (line,) = output.lines()
    request_id = str(line["request_id"])
    assert request_id.startswith("\\x1b[2Jx\\n")
    assert len(request_id) < MAX_VALUE_CHARS + 20


def test_a_librarys_warning_has_our_shape_without_the_quoted_input(output: Output) -> None:
    quoted = "authorization: sk-secret"
    try:
        raise ValueError(quoted)
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    (line,) = output.lines()
    assert (line["level"], line["logger"]) == ("error", "aiohttp.server")
    assert line["detail"] == "Error handling request"
    assert str(line["exception"]).endswith("ValueError")
    assert "sk-secret" not in output.stream.getvalue()


def test_a_terminal_gets_columns() -> None:
    stream = io.StringIO()
    writer = configure_logging(stream, console=True)
    try:
        get_logger().info("ready", port=10000)
        writer.close(timeout_s=30)
    finally:
        structlog.reset_defaults()
    assert "ready" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


class StalledStream(io.StringIO):
    """Blocks its writer until `resume` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.resume = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.resume.wait(timeout=30)
        return super().write(text)


def test_a_stalled_reader_costs_lines_not_time_and_is_told_how_many() -> None:
    stream = StalledStream()
    writer = LineWriter(stream, max_lines=5)
    writer.write("first\n")
    assert stream.reached.wait(timeout=30)
    for n in range(8):  # returns at once although nothing can be written
        writer.write(f"{n}\n")
    stream.resume.set()
    writer.close(timeout_s=30)
    *lines, lost = stream.getvalue().splitlines()
    assert lines == ["first", "0", "1", "2", "3", "4"]
    assert json.loads(lost)["count"] == 3


def test_a_vanished_reader_is_survived() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    stream.close()
    writer.write("to nobody\n")
    writer.close(timeout_s=30)
