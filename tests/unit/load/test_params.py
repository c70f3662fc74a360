"""Bad arguments are one clear line that names the option."""

from __future__ import annotations

import math

import pytest

from policy_server.load.params import LoadParams, parse_mix, parse_weights

URL = "http://127.0.0.1:1"


def test_a_base_url_gets_the_chat_path_and_a_full_one_is_kept() -> None:
    assert LoadParams(URL, 1, 1).path == "/v1/chat/completions"
    assert LoadParams(URL + "/", 1, 1).path == "/v1/chat/completions"
    assert LoadParams(URL + "/v1/messages", 1, 1).path == "/v1/messages"


def test_mix_reads_numbers_and_names() -> None:
    assert parse_mix("0:.2,P1:.5, 2:.3") == {"0": 0.2, "1": 0.5, "2": 0.3}
    assert parse_weights("team:a:3,b:1", "--tenants") == {"team:a": 3.0, "b": 1.0}


@pytest.mark.parametrize(
    "text", ["", "0", "0:x", "0:-1", "0:nan", ":1", "0:1,", "0:0", "3:1", "x:1"]
)
def test_a_bad_mix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--mix: [^\n]+$"):
        parse_mix(text)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"url": "localhost:8000"}, "--url"),
        ({"url": "ftp://x"}, "--url"),
        ({"url": "http://"}, "--url"),
        ({"url": "http://x:99999"}, "--url"),
        ({"rate": 0}, "--rate"),
        ({"rate": math.nan}, "--rate"),
        ({"rate": 1e9}, "--rate"),
        ({"seconds": -1}, "--seconds"),
        ({"seconds": math.inf}, "--seconds"),
        ({"tokens": 0}, "--tokens"),
        ({"sigma": -0.1}, "--sigma"),
        ({"warmup_s": 10.0}, "--warmup"),
    ],
)
def test_a_bad_value_is_refused(changes: dict[str, object], option: str) -> None:
    good: dict[str, object] = {"url": URL, "rate": 1.0, "seconds": 10.0}
    with pytest.raises(ValueError, match=rf"^{option} [^\n]+$"):
        LoadParams(**(good | changes))  # type: ignore[arg-type]
