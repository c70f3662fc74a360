"""The signed header: ours, for this request, for a while; nobody else's opens anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.jobs.passport import VALID_S, Passports, job_of, uid_of

UID = uid_of("ab12", 3)
NOW = 1_000.0


def passport(passports: Passports) -> str:
    return passports.issue(UID, "POST", "/v1/chat?x=1", NOW)


def test_the_uid_names_job_and_attempt() -> None:
    assert UID == "job-ab12-3"
    assert job_of(UID) == "ab12"


def test_it_is_good_for_its_request_and_for_a_while() -> None:
    passports = Passports()
    value = passport(passports)
    assert passports.holder(value, "POST", "/v1/chat?x=1", NOW + VALID_S - 1) == UID
    assert passports.holder(value, "POST", "/v1/chat?x=1", NOW + VALID_S + 1) is None
    assert passports.holder(value, "GET", "/v1/chat?x=1", NOW) is None
    assert passports.holder(value, "POST", "/v1/chat?x=2", NOW) is None


@pytest.mark.parametrize("part", [0, 1, 2])
def test_no_part_can_be_changed(part: int) -> None:
    passports = Passports()
    words = passport(passports).split(" ")
    words[part] = words[part][:-1] + ("1" if words[part][-1] != "1" else "2")
    assert passports.holder(" ".join(words), "POST", "/v1/chat?x=1", NOW) is None


def test_another_process_signs_otherwise() -> None:
    assert Passports().holder(passport(Passports()), "POST", "/v1/chat?x=1", NOW) is None


@given(st.text())
def test_garbage_is_nobodys(text: str) -> None:
    assert Passports(b"k").holder(text, "POST", "/", NOW) is None
