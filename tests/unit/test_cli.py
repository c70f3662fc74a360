"""The command line: fast help, one line for every mistake, the exit codes of the contract."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from policy_server import cli
from policy_server.core.request import Priority, Request
from policy_server.journal.port import RequestContext
from policy_server.journal.sqlite.journal import SqliteJournal
from policy_server.journal.sqlite.store import Store, StoreOptions
from tests.support.generated_config import FILES, FOLDER, UPSTREAM


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["policy-server", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gateway"], "Missing option '--upstream'"),
        (["gateway", "--upstream", "x"], "--upstream 'x': not a URL"),
        (["gateway", "--upstream", "http://h", "--wiring", "zz"], "--wiring"),
        (["check", "--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["load", "--url", "x", "--rate", "1", "--seconds", "1"], "--url 'x' is not a URL"),
        (["load", "--url", "http://h", "--rate", "a", "--seconds", "1"], "--rate"),
        (["backend", "--max-num-seqs", "0"], "max_num_seqs must be above 0"),
        (["backend", "--port", "99999"], "--port: 99999 is no port"),
        (["simulate", "--scenario", "nowhere"], "scenario 'nowhere': one of"),
        (["warmup", "--url", "x"], "--url 'x' is no URL"),
        (["nonsense"], "No such command 'nonsense'"),
        (["serve", "--nonsense"], "No such option: --nonsense"),
        (["jobs", "submit"], "Missing option '--data'. See: policy-server jobs submit --help"),
        (["jobs", "submit", "--data", "@nowhere"], "--data: nowhere cannot be read"),
        (["jobs", "submit", "--data", "x", "--url", "y"], "--url: 'y/v1/chat/completions' is no"),
        (["jobs", "submit", "--data", "x", "--path", "y"], "--path 'y' does not start with /"),
        (["jobs", "ls", "--token-file", "nowhere"], "--token-file: nowhere cannot be read"),
        (["jobs", "ls", "--token-file", sys.executable], "holds no token of one line. See:"),
        (["jobs", "ls", "--limit", "0"], "--limit"),
        (["gateway", "--upstream", "http://h", "--host", "nowhere.invalid"], "--host: cannot list"),
        (["simulate", "--scenario", "step", "--config", "x"], "--config goes with --trace"),
        (["simulate", "--scenario", "step", "--no-stream"], "--stream goes with --trace"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("policy-server: ")
    assert len(err.splitlines()) == 1
    assert "Value error" not in err


@pytest.mark.parametrize(
    "command",
    [["warmup", "--url", "http://h"], ["jobs", "submit", "--data", "x"]],
    ids=["warmup", "jobs"],
)
@pytest.mark.parametrize("wrong", ["Bearer sk-123456", "a b: sk-123456", "a: sk-123456\nb: c"])
def test_a_header_that_is_none_is_not_shown(
    capsys: pytest.CaptureFixture[str], command: list[str], wrong: str
) -> None:
    """It may well be a key."""
    code, out, err = run(capsys, *command, "--header", "x: y", "--header", wrong)
    assert (code, out) == (2, "")
    assert "--header number 2 is no header; write NAME: VALUE" in err
    assert "sk-123456" not in err


@pytest.mark.parametrize("group", [(), ("jobs",)])
def test_no_command_at_all_is_the_help_as_it_is_laid_out(
    capsys: pytest.CaptureFixture[str], group: tuple[str, ...]
) -> None:
    code, _, err = run(capsys, *group)
    assert code == 2
    assert err.startswith(" ".join(("Usage: policy-server", *group)))
    assert len(err.splitlines()) > 5


def test_jobs_say_that_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = run(capsys, "jobs", "ls", "--url", url)
    assert (code, out) == (1, "")
    assert "cannot connect (Connection refused); --url names another" in err
    assert "ssl:default" not in err


class Operator(BaseHTTPRequestHandler):
    """Knows one job; what is in it a client chose."""

    asked: ClassVar[list[str]] = []
    job: ClassVar[dict[str, object]] = {
        **{"id": "ab", "status": "done", "class": "P1", "tenant": "[red]:x:[/a]"},
        **{
            "path": "/v1?x=[/a]",
            "attempts": 1,
            "created_at": 1.0,
            "response_status": 200,
            "detail": "[bold]",
        },
    }

    def do_GET(self) -> None:
        self.asked.append(self.path)
        listed = self.path.startswith("/policy/jobs?")
        body = json.dumps({"jobs": [self.job]} if listed else self.job).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_jobs_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Operator.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Operator) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        code, out, _ = run(capsys, "jobs", "ls", "--url", url)
        assert (code, out.count("[red]:x:[/a]"), out.count("[bold]")) == (0, 1, 1)
        assert run(capsys, "jobs", "show", "ab", "--url", url)[0] == 0
        assert run(capsys, "jobs", "cancel", "a/b", "--url", url)[0] == 0
        server.shutdown()
    assert Operator.asked == ["/policy/jobs?limit=50", "/policy/jobs/ab", "/policy/jobs/a%2Fb"]


def test_a_journal_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def fill() -> None:
        journal = SqliteJournal(Store(StoreOptions(tmp_path / "journal.db")))
        journal.open()
        now = time.monotonic()
        request = Request("uid", "chat", Priority.P1, now, now + 600.0, tenant="[/a]:x:")
        journal.append_waiting(request, RequestContext("[red]"))
        await journal.close()

    asyncio.run(fill())
    code, out, _ = run(capsys, "journal", "ls", "--data-dir", str(tmp_path))
    assert (code, out.count("[/a]:x:"), out.count("[red]")) == (0, 1, 1)


def test_load_says_that_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://localhost:{taken.getsockname()[1]}"
        code, out, err = run(capsys, "load", "--url", url, "--rate", "1", "--seconds", "600")
    assert (code, out) == (1, "")
    assert f"{url}/v1/chat/completions: cannot connect (Connection refused)" in err
    assert len(err.splitlines()) == 1


def test_load_says_that_nobody_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    silent.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("--url", url, "--rate", "20", "--seconds", "0.3")
        code, out, err = run(capsys, "load", *arguments)
        silent.shutdown(socket.SHUT_RDWR)
    assert code == 1
    assert "failed" in out  # the table is shown all the same
    assert f"{url}/v1/chat/completions: no request got an answer: " in err


def test_check_says_what_it_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("pools: [{name: a, match: {model: x}, backends: {count: 2}}, {name: b}]")
    code, out, _ = run(capsys, "check", "--config", str(file))
    first, second = out.splitlines()
    assert (code, first) == (0, f"{file}: ok; pools: a, b")
    assert second.startswith("no scaling from zero for b: ")
    assert "set pools[].backends" in second


def test_check_looks_at_the_files_that_are_named_unless_told_not_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("server: {tls: {cert: /nowhere/a.pem, key: /nowhere/a.key}}")
    code, out, err = run(capsys, "check", "--config", str(file))
    assert (code, out) == (2, "")
    assert "server.tls.cert: /nowhere/a.pem cannot be read" in err
    assert run(capsys, "check", "--no-files", "--config", str(file))[0] == 0
    code, _, err = run(capsys, "serve", "--config", str(file))
    assert code == 2
    assert "server.tls.cert" in err


@pytest.mark.parametrize("command", ["check", "serve"])
def test_check_and_serve_look_for_the_journal_in_the_same_place(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    code, _, err = run(capsys, command, "--data-dir", str(tmp_path / "file"))
    assert code == 2
    assert f"journal.path: {tmp_path}/file/journal.db: {tmp_path}/file cannot be written to" in err


def test_check_warns_of_a_room_that_no_machine_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("room: {max_requests: 100000000000}")
    code, out, err = run(capsys, "check", "--config", str(file))
    assert (code, out.splitlines()[0]) == (0, f"{file}: ok; pools: default")
    assert err.startswith("policy-server: warning: room.max_requests: 100,000,000,000 waiting")


def test_a_token_too_short_to_be_one_is_a_mistake_in_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("short")
    file = tmp_path / "policy.yaml"
    file.write_text(f"server: {{admin_token_file: {tmp_path / 'token'}}}")
    code, out, err = run(capsys, "serve", "--config", str(file))
    assert (code, out) == (2, "")
    assert "server.admin_token_file" in err
    assert "at least 16 characters" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", FILES)
def test_envoy_config_prints_the_checked_in_file(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = (FOLDER / name).read_text("utf-8")
    command = text.splitlines()[1].removeprefix("# policy-server ")
    code, out, _ = run(capsys, *command.split())
    assert code == 0
    assert out == text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gateway", "a/b"], "--gateway and --namespace are of meshes"),
        (["--target", "istio", "--upstream", UPSTREAM[0]], "the routes are your own"),
        (["--target", "istio", "--gateway", "eg"], "not NAMESPACE/NAME"),
        (["--target", "istio", "--namespace", "A b"], "not the name of a namespace"),
        (["--target", "istio", "--wiring", "stream"], "gate does more"),
        (["--target", "istio-values", "--wiring", "stream"], "gate does more"),
        (["--target", "envoy-gateway"], "use --wiring stream"),
        (["--target", "envoy-gateway", "--wiring", "stream", "--upstream", UPSTREAM[0]], "SERVICE"),
    ],
)
def test_what_a_target_can_t_express_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    code, _, err = run(capsys, "envoy-config", *flags)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--target istio", 0),
        ("--target istio-values", 0),
        ("--target istio --wiring authz", 2),
        ("--target istio-values --wiring authz", 2),
        ("--target envoy-gateway --wiring stream", 2),
        ("--target envoy-gateway --wiring authz", 2),
        ("--wiring authz", 0),
    ],
)
def test_pools_by_model_are_refused_where_nothing_reads_bodies(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: str, code: int
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("pools: [{name: a, match: {model: x}}]")
    got, _, err = run(capsys, "envoy-config", "--config", str(file), *flags.split())
    assert got == code
    assert ("pools[0].match.model: --target" in err) == (code == 2)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in (
        "gateway",
        "serve",
        "envoy-config",
        "check",
        "backend",
        "load",
        "simulate",
        "demo",
    ):
        assert f"  {name} " in out


def test_help_imports_nothing_heavy() -> None:
    heavy = "grpc", "aiohttp", "pydantic", "envoy_data_plane", "google.protobuf"
    script = (
        "import sys; sys.argv = ['policy-server', '--help']\n"
        "from policy_server import cli\n"
        "try: cli.main()\n"
        f"except SystemExit: print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr.splitlines()[-1] == "[]"
