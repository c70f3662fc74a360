"""`jobs ls`: what is acted upon is never cut."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from policy_server.jobs.command import Reply, listing

ID = "0123456789abcdef0123456789abcdef"


def job(**more: Any) -> dict[str, Any]:
    return {
        **{"id": ID, "created_at": 1_000.0, "status": "dispatched", "class": "P1"},
        **{"tenant": "t" * 40, "path": "/v1/chat/completions", "attempts": 10},
        **{"response_status": None, "detail": "the model server answered 503; again in 7.6 s"},
        **more,
    }


@pytest.mark.parametrize("width", [80, 100, 119, 120, 140, 200])
def test_an_id_is_whole_in_any_terminal(width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(listing([job(response_status=200)], width, 1_130.0))
    text = console.export_text()
    assert ID in text
    assert "2 m" in text
    assert "200" in text
    assert "…" not in text
    assert ("attempts" in text) is (width >= 120)


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-3, "0 s"), (7, "7 s"), (119, "119 s"), (7_199, "119 m"), (90_000, "25 h"), (1e6, "11 d")],
)
def test_ages(seconds: float, age: str) -> None:
    (cell,) = list(listing([job()], 80, 1_000.0 + seconds).columns[1].cells)
    assert cell == age


def test_what_is_no_gateway_is_said_once() -> None:
    with pytest.raises(Exception, match=r"^404: Not Found; is the --url right\?$"):
        Reply(404, {}, b"404: Not Found").document()
