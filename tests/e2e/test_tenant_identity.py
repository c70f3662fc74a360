"""Who a request is of, through Envoy's jwt_authn: what a client writes itself counts nothing."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from policy_server.envoy_config.options import Wiring
from tests.support.stack import Stack, chat, running_stack
from tests.support.wired import connection_manager

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = secrets.token_bytes(32)
CONFIG: dict[str, Any] = {
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": 1}}],
    "classes": {name: {"max_wait_s": 60} for name in ("P0", "P1", "P2")},
    "room": {"tenant_max_requests": 1},
    "tenants": {
        "from": "metadata:envoy.filters.http.jwt_authn/claims/org/name",
        "known": ["acme", "batch"],
        "max_class": {"acme": "P0", "batch": "P2"},
        "default_max_class": "P1",
    },
}
LONG = 100_000


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def token(org: str, key: bytes = SECRET) -> dict[str, str]:
    """The header of a signed token for `org`."""
    claims = {"iss": "tests", "exp": int(time.time()) + 600, "org": {"name": org}}
    parts = [b64(json.dumps(p).encode()) for p in ({"alg": "HS256", "kid": "k"}, claims)]
    text = ".".join(parts)
    return {"authorization": f"Bearer {text}.{b64(hmac.digest(key, text.encode(), 'sha256'))}"}


def with_jwt(bootstrap: dict[str, Any]) -> None:
    """Put Envoy's jwt_authn in front of everything of ours."""
    jwks = {"keys": [{"kty": "oct", "alg": "HS256", "kid": "k", "k": b64(SECRET)}]}
    provider = {
        "issuer": "tests",
        "payload_in_metadata": "claims",
        "local_jwks": {"inline_string": json.dumps(jwks)},
    }
    missing_is_fine = {"requires_any": {"requirements": [{"provider_name": "t"}, _ALLOW_MISSING]}}
    rules = [{"match": {"prefix": "/"}, "requires": missing_is_fine}]
    kind = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
    config = {"@type": kind, "providers": {"t": provider}, "rules": rules}
    filters = connection_manager(bootstrap)["http_filters"]
    filters.insert(0, {"name": "envoy.filters.http.jwt_authn", "typed_config": config})


_ALLOW_MISSING: dict[str, Any] = {"allow_missing": {}}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["gate", "authz"])
async def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    wiring: Wiring = request.param
    directory: Path = tmp_path_factory.mktemp(wiring)
    async with running_stack(directory, CONFIG, wiring=wiring, alter=with_jwt) as running:
        yield running


async def ask(stack: Stack, headers: dict[str, str], tokens: int = 1) -> tuple[int, Any, str]:
    url = f"{stack.url}/v1/chat/completions"
    async with stack.client.post(url, json=chat(tokens), headers=headers) as answer:
        return answer.status, answer.headers, await answer.text()


@pytest.mark.parametrize(
    ("org", "asked", "given"),
    [
        ("acme", "P0", "P0"),
        ("acme", "P2", "P2"),
        ("batch", "P0", "P2"),
        ("batch", "0", "P2"),
        ("invented", "P0", "P1"),
        (None, "P0", "P1"),
    ],
)
async def test_the_token_caps_the_class(
    stack: Stack, org: str | None, asked: str, given: str
) -> None:
    who = token(org) if org else {}
    sly = {"x-tenant-id": "acme", "x-policy-class": "P0", "priority": "u=0"}
    status, headers, _ = await ask(stack, {**sly, **who, "x-request-priority": asked})
    assert (status, headers["x-policy-class"]) == (200, given)


async def test_a_token_that_is_not_signed_with_the_key_reaches_nothing(stack: Stack) -> None:
    status, headers, _ = await ask(stack, token("acme", key=b"x" * 32))
    assert status == 401
    assert "x-policy-class" not in headers


async def test_invented_tenants_share_one_place(stack: Stack) -> None:
    """One request of each tenant may wait here; those of invented ones count together."""
    await stack.until(waiting=0, inflight=0)
    first = asyncio.create_task(ask(stack, token("acme"), LONG))
    await stack.until(waiting=0, inflight=1)
    held = [asyncio.create_task(ask(stack, token("acme"), LONG))]
    await stack.until(waiting=1, inflight=1)
    held.append(asyncio.create_task(ask(stack, token("invented-1"), LONG)))
    await stack.until(waiting=2, inflight=1)
    status, headers, _ = await ask(stack, token("invented-2"))
    assert (status, headers["x-policy-reason"]) == (429, "tenant_limit")
    assert headers["ratelimit"].startswith('"tenant";r=0;t=')
    tenants = (await stack.pool())["waiting_by_tenant"]
    assert tenants == {"acme": 1, "(unknown)": 1}
    shown = (await stack.pool())["tenants"]
    assert shown["acme"] == {"waiting": {"P0": 0, "P1": 1, "P2": 0}, "inflight": 1}
    log = (stack.directory / "policy.log").read_text().splitlines()
    line = next(json.loads(x) for x in log if headers["x-request-id"] in x)
    found = [line[key] for key in ("reason", "tenant", "class", "budget_s", "should_retry")]
    assert found == ["tenant_limit", "(unknown)", "P1", 60.0, True]
    assert line["predicted_wait_s"] > 0
    for task in (first, *held):
        task.cancel()
    await stack.until(waiting=0, inflight=0)
