"""A job never outlives the bearer token it carries; what is no token sets no bound."""

from __future__ import annotations

import base64
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.jobs.token import runs_out_at


def bearer(claims: object) -> tuple[tuple[str, str], ...]:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return (("authorization", f"Bearer e30.{part}.sig"),)


@pytest.mark.parametrize("exp", [0, 1_700_000_000, 1_700_000_000.5, -5])
def test_the_expiry_is_read(exp: float) -> None:
    assert runs_out_at(bearer({"exp": exp, "sub": "me"})) == exp


def test_the_earliest_of_several_counts() -> None:
    assert runs_out_at(bearer({"exp": 9}) + bearer({"exp": 5})) == 5


@pytest.mark.parametrize("claims", [{}, {"exp": "soon"}, {"exp": True}, {"exp": 1e300}, [], 7])
def test_no_expiry_no_bound(claims: object) -> None:
    assert runs_out_at(bearer(claims)) == math.inf


@given(st.text())
def test_whatever_stands_there_nothing_breaks(text: str) -> None:
    assert runs_out_at((("authorization", f"Bearer a.{text}.b"), ("cookie", text))) > 0
