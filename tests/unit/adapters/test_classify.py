"""Which pool, class, tenant and budget a request gets."""

from __future__ import annotations

import hashlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.adapters.answers import Dialect
from policy_server.adapters.classify import (
    MAX_PROMPT_TOKENS,
    BodyFacts,
    Classified,
    Facts,
    Now,
    bounded_name,
    classify,
)
from policy_server.adapters.rules import ClassifyRules, rules_of
from policy_server.config import Config
from policy_server.core.request import ENDLESS_S, Priority, Request

P0, P1, P2 = Priority
NOW = Now(monotonic=100.0, wall=1.7e9)
CHAT = {":method": "POST", ":path": "/v1/chat/completions", "x-policy-uid": "uid-1"}


def classified(
    headers: dict[str, str] | None = None,
    rules: ClassifyRules | None = None,
    **facts: object,
) -> Classified:
    all_headers = {**CHAT, **(headers or {})}
    return classify(Facts(headers=all_headers, **facts), rules or ClassifyRules(), NOW)  # type: ignore[arg-type]


def request(headers: dict[str, str] | None = None, **facts: object) -> Request:
    found = classified(headers, **facts).request  # type: ignore[arg-type]
    assert found is not None
    return found


def rules(**sections: object) -> ClassifyRules:
    return rules_of(Config.model_validate(sections))


@pytest.mark.parametrize(
    ("value", "priority"),
    [("0", P0), ("P0", P0), ("p2", P2), (" 1 ", P1), ("2", P2)]
    + [(junk, P1) for junk in ("", "3", "-1", "P9", "high", "0, 2", "\ufffd", "x" * 65536)],
)
def test_priority_header(value: str, priority: Priority) -> None:
    assert request({"x-request-priority": value}).priority is priority


@pytest.mark.parametrize(
    ("value", "priority"),
    [("u=0", P0), ("u=1, i", P0), ("i, u=2", P1), ("u=4", P1), ("u=5", P2), ("u=7;x", P2)]
    + [(junk, P1) for junk in ("", "u=8", "u=-1", "u=77", "uu=0", "u=0.5", "urgent")],
)
def test_rfc_9218_speaks_where_the_own_header_is_silent(value: str, priority: Priority) -> None:
    assert request({"priority": value}).priority is priority
    assert request({"priority": value, "x-request-priority": "0"}).priority is P0
    assert request({"priority": value, "x-request-priority": "junk"}).priority is P1


def test_a_tenant_cannot_exceed_its_class() -> None:
    capped = rules(tenants={"max_class": {"batch": "P2"}, "default_max_class": "P1"})
    asked = {"x-request-priority": "0"}
    assert request({**asked, "x-tenant-id": "batch"}, rules=capped).priority is P2
    assert request({**asked, "x-tenant-id": "other"}, rules=capped).priority is P1


def test_names_that_are_not_on_the_list_of_tenants_are_one_tenant() -> None:
    listed = rules(tenants={"known": ["acme"], "max_class": {"acme": "P0"}})
    found = [request({"x-tenant-id": t}, rules=listed).tenant for t in ("acme", "x1", "x2", "")]
    assert found == ["acme", "(unknown)", "(unknown)", ""]
    weighed = rules(tenants={"known": ["acme"], "weights": {"big": 3}, "max_class": {"lo": "P2"}})
    assert [request({"x-tenant-id": t}, rules=weighed).tenant for t in ("big", "lo")] == [
        "big",
        "lo",
    ]
    assert request({"x-tenant-id": "x1"}).tenant == "x1"  # without a list everybody is somebody


@pytest.mark.parametrize(
    ("read_timeout", "budget_s"), [("600", 15), ("4", 3.2), ("0", 15), ("-3", 15), ("4.5x", 15)]
)
@pytest.mark.parametrize("header", ["x-stainless-read-timeout", "x-stainless-timeout"])
def test_nobody_is_held_longer_than_his_sdk_waits(
    header: str, read_timeout: str, budget_s: float
) -> None:
    found = request({header: read_timeout})
    assert found.budget_s == pytest.approx(budget_s)


@pytest.mark.parametrize(
    ("prefer", "budget_s"),
    [
        ("", 15),
        ("wait=3", 3),
        ("respond-async, wait=10", 10),
        ("wait=0", 0),
        ("WAIT = 4", 4),
        ('wait="6"', 6),
        ("wait=99999", 15),
        ("wait=-1", 15),
        ("await=2", 15),
        ("wait=soon", 15),
    ],
)
def test_the_wait_budget_is_the_class_s_or_shorter(prefer: str, budget_s: float) -> None:
    found = request({"prefer": prefer})
    assert found.budget_s == budget_s
    assert found.arrived == NOW.monotonic
    assert found.arrived_wall == NOW.wall


@pytest.mark.parametrize(
    ("length", "body_bytes"),
    [("812", 812), ("", 0), ("-5", 0), ("1e3", 0), ("5, 5", 0), ("٣", 0), ("9" * 30, 0)],
)
def test_content_length(length: str, body_bytes: int) -> None:
    found = request({"content-length": length})
    assert found.body_bytes == body_bytes
    assert found.prompt_tokens == body_bytes // 4


def test_a_claimed_length_counts_with_no_more_than_envoy_keeps() -> None:
    assert request({"content-length": "268435400"}).body_bytes == 32 * 1024 * 1024


def test_a_huge_body_is_no_huge_prompt() -> None:
    assert request({"content-length": str(3 << 20)}).prompt_tokens == MAX_PROMPT_TOKENS


@pytest.mark.parametrize(
    ("asked", "kept"), [(256.0, 256), (-1.0, 0), (math.nan, 0), (math.inf, 0), (1e300, 1 << 24)]
)
def test_body_fields(asked: float, kept: int) -> None:
    found = request(body=BodyFacts("llama", stream=True, max_tokens=asked))
    assert (found.model, found.streamed, found.max_tokens) == ("llama", True, kept)


def test_a_retry_is_known_by_the_sdk_s_counter() -> None:
    assert request({"x-stainless-retry-count": "2"}).returning
    assert not request({"x-stainless-retry-count": "0"}).returning
    assert not request({"x-stainless-retry-count": "many"}).returning


@pytest.mark.parametrize(
    ("headers", "governed"),
    [
        ({}, True),
        ({":method": "GET"}, False),
        ({":path": "/health"}, False),
        ({":method": "GET", "upgrade": "websocket"}, True),
        ({":method": "GET", ":path": "/health", "upgrade": "websocket"}, False),
    ],
)
def test_what_is_governed(headers: dict[str, str], governed: bool) -> None:
    found = classified(headers, rules(govern={"paths": ["/v1"]}))
    assert (found.request is not None) == governed


def test_an_upgrade_takes_a_seat_and_is_never_observed() -> None:
    assert not request({"upgrade": "websocket"}).observable
    assert not request({":method": "CONNECT", ":path": ""}).observable
    assert request().observable
    assert not request({"upgrade": "websocket"}, body=BodyFacts(stream=True)).streamed


def test_the_first_pool_that_matches_takes_it() -> None:
    two = rules(
        pools=[
            {"name": "big", "match": {"model": "llama-70b*"}},
            {"name": "embed", "match": {"path_prefix": "/v1/embeddings"}},
            {"name": "api", "match": {"host": "API.example.com"}},
            {"name": "routed", "match": {"route": "r1", "cluster": "c1"}},
        ]
    )
    assert request(body=BodyFacts("llama-70b-chat"), rules=two).pool == "big"
    assert request({":path": "/v1/embeddings?x=1"}, rules=two).pool == "embed"
    assert request({":authority": "api.example.com:8080"}, rules=two).pool == "api"
    assert request(rules=two, route="r1", cluster="c1").pool == "routed"
    assert classified(rules=two, route="r1").request is None
    assert classified(rules=two).request is None


def test_a_body_that_was_not_read_goes_to_the_first_pool_whose_other_keys_match() -> None:
    """Nobody passes ungoverned because nobody could look."""
    two = rules(
        pools=[
            {"name": "embed", "match": {"path_prefix": "/v1/embeddings", "model": "e*"}},
            {"name": "big", "match": {"model": "llama-70b*"}},
        ]
    )
    hidden = BodyFacts(read=False)
    assert request(body=hidden, rules=two).pool == "big"
    assert request({":path": "/v1/embeddings"}, body=hidden, rules=two).pool == "embed"
    assert classified(body=BodyFacts(), rules=two).request is None
    assert classified(body=BodyFacts(read=False, broken=True), rules=two).unread


@pytest.mark.parametrize("path", ["/v%31/chat", "/%76%31%2Fchat", "/v1/%63hat?%"])
def test_a_path_is_what_the_model_server_makes_of_it(path: str) -> None:
    found = classified({":path": path}, rules(govern={"paths": ["/v1/"]})).request
    assert found is not None
    assert found.path == "/v1/chat"


@pytest.mark.parametrize(
    ("path", "streamed"),
    [
        ("/generate_stream", True),
        ("/v2/models/m/generate_stream?x", True),
        ("/v1beta/models/g:streamGenerateContent", True),
        ("/model/m/invoke-with-response-stream", True),
        ("/generate", False),
        ("/v1/upstream", False),
        ("/stream/v1/chat", False),
    ],
)
def test_a_path_that_says_so_is_streamed(path: str, streamed: bool) -> None:
    assert request({":path": path}).streamed == streamed


def test_tenant_sources() -> None:
    by_header = rules(tenants={"from": "header:X-Org"})
    assert request({"x-org": " acme "}, rules=by_header).tenant == "acme"
    assert request(rules=by_header).tenant == ""
    by_metadata = rules(tenants={"from": "metadata:envoy.filters.http.jwt_authn/claims/sub"})
    assert request(rules=by_metadata, tenant="acme").tenant == "acme"
    by_key = rules(tenants={"from": "api_key_hash"})
    one = request({"authorization": "Bearer sk-1"}, rules=by_key).tenant
    assert one == request({"x-api-key": "sk-1"}, rules=by_key).tenant
    assert one != request({"authorization": "Bearer sk-2"}, rules=by_key).tenant
    assert "sk-1" not in one
    assert len(one) == 16
    assert request(rules=by_key).tenant == ""


def test_long_names_are_bounded_and_stay_apart() -> None:
    one, two = (request({"x-tenant-id": "t" * 70_000 + end}) for end in "ab")
    assert one.tenant != two.tenant
    assert len(one.tenant) < 64
    assert len(request({":path": "/" + "p" * 70_000}).path) < 300


def test_a_request_without_a_usable_uid_gets_one() -> None:
    for value in ("", "x" * 65536, "with space"):
        found = classified({"x-policy-uid": value})
        assert found.stranger
        assert found.request is not None
        assert len(found.request.uid) == 36
    known = classified()
    assert not known.stranger
    assert known.request is not None
    assert known.request.uid == "uid-1"


def test_the_dialect_follows_the_path() -> None:
    assert classified({":path": "/v1/messages?beta=1"}).dialect is Dialect.ANTHROPIC


def test_a_key_is_named_by_the_hash_that_the_readme_tells() -> None:
    by_key = rules(tenants={"from": "api_key_hash"})
    name = request({"authorization": "Bearer sk-123"}, rules=by_key).tenant
    assert name == hashlib.sha256(b"sk-123").hexdigest()[:16]


def test_a_second_key_header_makes_no_new_tenant() -> None:
    by_key = rules(tenants={"from": "api_key_hash"})
    real = {"authorization": "Bearer sk-1"}
    names = {
        request({**real, **junk}, rules=by_key).tenant
        for junk in ({}, {"x-api-key": "1"}, {"api-key": "2"}, {"authorization": "bearer  sk-1 "})
    }
    assert len(names) == 1
    real = {"x-api-key": "sk-1", ":path": "/v1/messages"}
    junk = {"authorization": "Bearer 1"}
    assert request(real, rules=by_key).tenant == request({**real, **junk}, rules=by_key).tenant
    assert request({}, rules=by_key).tenant == ""


NAMES = st.sampled_from(
    [
        *(":method", ":path", ":authority", "upgrade", "content-type", "content-length", "prefer"),
        *("x-request-priority", "priority", "x-policy-uid", "x-stainless-retry-count"),
        *("x-tenant-id", "authorization", "x-request-id", "x-queue-ticket"),
        *("grpc-timeout", "x-stainless-read-timeout", "x-stainless-timeout", "api-key"),
    ]
)
SOURCES = st.sampled_from(["header:x-tenant-id", "api_key_hash", "metadata:ns/key"])


@given(st.dictionaries(NAMES, st.text()), st.text(), st.floats(), SOURCES)
def test_nothing_a_client_sends_raises(
    headers: dict[str, str], text: str, number: float, source: str
) -> None:
    facts = Facts(headers, BodyFacts(text, max_tokens=number), tenant=text, route=text)
    found = classify(facts, rules(tenants={"from": source}), NOW)
    assert found.priority in Priority
    if found.request is not None:
        assert found.request.uid
        assert 0 <= found.request.budget_s <= 45
        assert found.request.body_bytes >= 0


@pytest.mark.parametrize(
    ("headers", "patience_s"),
    [
        ({}, ENDLESS_S),
        ({"prefer": "wait=60"}, 60.0),
        ({"x-stainless-read-timeout": "120"}, 119.0),
        ({"prefer": "wait=60", "x-stainless-read-timeout": "30"}, 29.0),
        ({"prefer": "wait=0"}, 0.0),
    ],
)
def test_what_the_caller_would_wait_is_kept_beside_the_class_s_budget(
    headers: dict[str, str], patience_s: float
) -> None:
    found = request(headers)
    assert found is not None
    assert found.patience_s == patience_s


@pytest.mark.parametrize(
    ("named", "tenant", "owner"),
    [
        ("acme", "acme", "acme"),
        ("bob", "(unknown)", "bob"),
        (" bob ", "(unknown)", "bob"),
        ("", "", ""),
        ("b" * 200, "(unknown)", bounded_name("b" * 200)),
        ("(unknown)", "(unknown)", "sha256-" + hashlib.sha256(b"(unknown)").hexdigest()[:32]),
    ],
)
def test_unlisted_tenants_share_a_turn_and_own_their_jobs(
    named: str, tenant: str, owner: str
) -> None:
    rules = ClassifyRules(known_tenants=frozenset({"acme"}))
    headers = {":method": "POST", ":path": "/", "x-tenant-id": named}
    seen = classify(Facts(headers), rules, Now(0.0, 0.0))
    assert seen.request is not None
    assert (seen.request.tenant, seen.owner) == (tenant, owner)
