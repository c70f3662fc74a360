"""Traces: what is read, and what a user hears about a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy_server.core.request import Priority
from policy_server.simulate.errors import InputError
from policy_server.simulate.trace import DEFAULT_MIX, TraceRow, classify, read_trace

AZURE = Path(__file__).parents[2] / "simulation" / "traces" / "AzureLLMInferenceTrace_code.csv"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_azure_trace_reads_whole() -> None:
    rows = read_trace(AZURE)
    assert len(rows) == 8819
    assert rows[0] == TraceRow(0.0, 4808, 10)
    assert len(rows) / rows[-1].at == pytest.approx(2.57, abs=0.01)


def test_seconds_classes_and_tenants_are_taken_as_given(tmp_path: Path) -> None:
    path = write(tmp_path, "tenant,class,GeneratedTokens,ContextTokens,TIMESTAMP\na,P2,7,9,1.5\n")
    assert read_trace(path) == [TraceRow(0.0, 9, 7, Priority.P2, "a")]


@pytest.mark.parametrize(
    "stamp",
    [
        "2024-05-10 00:00:01.5",
        "2024-05-10 00:00:01.5000000",
        "2024-05-10 00:00:01.500000+00:00",
        "2024-05-10T02:00:01.5+02:00",
        "2024-05-10T00:00:01.5Z",
    ],
)
def test_a_moment_as_the_data_sets_write_it(tmp_path: Path, stamp: str) -> None:
    path = write(tmp_path, f"\ufeff{HEADER}2024-05-10 00:00:00+00:00,1,1\n{stamp},1,1\n")
    assert [row.at for row in read_trace(path)] == [0.0, 1.5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "trace.csv:1: missing column TIMESTAMP"),
        ("TIMESTAMP,GeneratedTokens\n1,2\n", "trace.csv:1: missing column ContextTokens"),
        (HEADER, "no requests"),
        (HEADER + "1.0,10,10\n2.0,ten,10\n", "trace.csv:3: ContextTokens 'ten' is not a whole"),
        (HEADER + "1.0,10\n", "trace.csv:2: no value for GeneratedTokens"),
        (HEADER + "1.0,10,-1\n", "trace.csv:2: GeneratedTokens -1 is negative"),
        (HEADER + "yesterday,10,1\n", "trace.csv:2: TIMESTAMP 'yesterday' is not a time"),
        (HEADER + "nan,10,1\n", "trace.csv:2: TIMESTAMP 'nan' is not a time"),
        (HEADER + "2.0,1,1\n1.0,1,1\n", "trace.csv:3: earlier than the line before"),
        ("class," + HEADER + "P7,1.0,1,1\n", "trace.csv:2: class 'P7' is none of"),
        (HEADER + '0,"\n5",3\n1,x,1\n', "trace.csv:4: ContextTokens 'x'"),
        (HEADER + "0,1,1\n1700000000,1,1\n", "trace.csv:3: more than 31 days after the first"),
    ],
)
def test_a_bad_trace_is_one_line_with_place_and_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(write(tmp_path, text))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a CSV"):
        read_trace(tmp_path / "binary.csv")


def test_classes_come_from_a_seeded_hash_in_the_given_mix() -> None:
    rows = [TraceRow(float(n), 1, 1) for n in range(4000)]
    first = [(p, t) for _, p, t in classify(rows, 1, DEFAULT_MIX, 4)]
    assert first == [(p, t) for _, p, t in classify(rows, 1, DEFAULT_MIX, 4)]
    assert first != [(p, t) for _, p, t in classify(rows, 2, DEFAULT_MIX, 4)]
    for priority, share in DEFAULT_MIX.items():
        assert sum(p is priority for p, _ in first) / 4000 == pytest.approx(share, abs=0.03)
    assert {t for _, t in first} == {"t0", "t1", "t2", "t3"}
