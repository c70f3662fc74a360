"""`policy-server simulate`: what a user types and what comes back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from policy_server.config import ConfigError
from policy_server.core.params import PoolParams
from policy_server.simulate.command import simulate_command
from policy_server.simulate.options import mix_of, replicas_of

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(simulate_command(lambda path: [PoolParams("first"), PoolParams("second")]))
    return app


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{n * 0.05:.2f},300,60\n" for n in range(1200)))
    return path


def invoke(app: typer.Typer, *args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


def test_what_if_says_what_each_class_meets_and_how_many_replicas_suffice(
    app: typer.Typer, trace: Path
) -> None:
    code, out, _ = invoke(
        app, "--trace", trace, "--replicas", "1..4", "--max-num-seqs", 16, "--json"
    )
    assert code == 0
    answer = json.loads(out)
    refused = [sum(c["refused"] for c in f["classes"]) for f in answer["forecasts"]]
    assert refused[0] > 0.1
    assert refused[-1] == 0
    assert answer["needed_replicas"] in (2, 3, 4)


def test_the_report_stands_alone(app: typer.Typer, trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    code, out, err = invoke(
        app, "--trace", trace, "--max-num-seqs", 16, "--compare", "product,none", "--report", report
    )
    assert (code, err) == (0, "")
    assert "What would happen" in out
    page = report.read_text()
    assert not re.search(r"(src|href)=|@import|url\(|<script", page)
    assert page.count("<figure>") == 12
    for words in ("policy-server", "no control", "Limit and in flight", "seconds, p95", "P0"):
        assert words in page


def test_a_scenario_by_name_with_its_bars(app: typer.Typer) -> None:
    code, out, _ = invoke(app, "--scenario", "below-capacity", "--compare", "product", "--json")
    assert code == 0
    assert json.loads(out)["holds"]["product"]
    assert "24 azure" in invoke(app, "--scenario", "list")[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "--trace FILE or --scenario NAME"),
        (["--scenario", "nonsense"], "scenario 'nonsense': one of"),
        (["--trace", "missing.csv"], "missing.csv: No such file"),
        (["--trace", "TRACE", "--replicas", "many"], "--replicas 'many'"),
        (["--trace", "TRACE", "--replicas", "8..1"], "the smaller first"),
        (["--trace", "TRACE", "--mix", "9:1"], "--mix '9:1'"),
        (["--trace", "TRACE", "--speed", "0"], "--speed 0: must be > 0"),
        (["--trace", "TRACE", "--speed", "nan"], "--speed nan: must be > 0"),
        (["--trace", "TRACE", "--step-ms", "nan"], "--step-ms nan: must be a finite number"),
        (["--trace", "TRACE", "--mix", "0:nan"], "--mix '0:nan'"),
        (["--trace", "TRACE", "--plain", "4:nan"], "--plain '4:nan'"),
        (["--trace", "TRACE", "--calibrate", "BINARY"], "binary.csv: not a CSV"),
        (["--trace", "TRACE", "--tenants", "0"], "--tenants 0"),
        (["--trace", "TRACE", "--max-num-seqs", "0"], "slots"),
        (["--trace", "TRACE", "--prefill-tps", "0"], "--prefill-tps 0"),
        (["--trace", "TRACE", "--plain", "x:1"], "--plain 'x:1'"),
        (["--trace", "TRACE", "--calibrate", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--trace", "TRACE", "--pool", "third"], "--pool 'third': one of first, second"),
        (["--trace", "TRACE", "--compare", "magic"], "policy 'magic': one of"),
        (["--trace", "TRACE", "--compare", "product", "--report", "/no/such/x.html"], "--report"),
        (["--trace", "BAD"], "bad.csv:3: ContextTokens 'x' is not a whole number"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    app: typer.Typer, trace: Path, tmp_path: Path, args: list[str], words: str
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(HEADER + "1,1,1\n2,x,1\n")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe")
    files = {"TRACE": str(trace), "BAD": str(bad), "BINARY": str(binary)}
    given = [files.get(arg, arg) for arg in args]
    error = CliRunner().invoke(app, given).exception
    assert isinstance(error, ConfigError)
    assert words in str(error)
    assert len(str(error).splitlines()) == 1


def test_ranges_and_mixes() -> None:
    assert replicas_of("3") == [3]
    assert replicas_of("1..4") == [1, 2, 3, 4]
    assert {p.name: share for p, share in mix_of("P0:.2, 2:.8").items()} == {"P0": 0.2, "P2": 0.8}
