"""What a request is: pool, class, tenant, deadline, sizes — from what Envoy knows of it.

Pure: headers and metadata in, a `Classified` out. Garbage in any header means "as if it were not
there"; nothing that a client sends raises here. Both wirings (ext_proc and ext_authz) use it.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from policy_server.adapters.answers import Dialect, dialect_of
from policy_server.adapters.patience import patience_s
from policy_server.adapters.rules import ClassifyRules, PoolRule, TenantSource
from policy_server.core.request import ENDLESS_S, PATH_KEPT, UNKNOWN_TENANT, Priority, Request

MAX_NAME = 128
"""Longer tenant names are replaced by their hash, so that a held request stays small."""
MAX_PROMPT_TOKENS = 32_768
"""The estimate from a content length stops here: a 3 MB image is not 750k tokens."""
BYTES_PER_TOKEN = 4
MAX_OUTPUT_TOKENS = 1 << 24

_CLASSES = {name: priority for priority in Priority for name in (str(int(priority)), priority.name)}
_URGENCY = re.compile(r"(?:^|[,;\s])u\s*=\s*([0-7])(?![0-9.])")
_STREAM = re.compile(r"(?:^|[^a-z])stream", re.IGNORECASE)
_BEARER = re.compile(r"^\s*bearer\s+", re.IGNORECASE)
MAX_DIGITS = 18


class BodyFacts(NamedTuple):
    """Fields of the JSON body, lifted by Envoy; whatever the client wrote there.

    `read`: the body is known, so a model that is not here is not there. `broken`: Envoy looked
    and could not read it.
    """

    model: str = ""
    stream: bool = False
    max_tokens: float = 0.0
    read: bool = True
    broken: bool = False


class Facts(NamedTuple):
    """One request as Envoy shows it; header names in lower case, duplicates joined by `, `.

    `tenant` is the value of the metadata key that the rules name ("" when they name a header).
    `time_left_s`: for how long the caller waits; it shortens the wait, never lengthens it.
    `observable`: whether this wiring can show the answer as it passes.
    `taken_in`: when Envoy got it, Unix seconds by Envoy's clock; 0 = not looked at.
    """

    headers: Mapping[str, str]
    body: BodyFacts = BodyFacts()
    tenant: str = ""
    route: str = ""
    cluster: str = ""
    node: str = ""
    time_left_s: float = math.inf
    observable: bool = True
    taken_in: float = 0.0


class Now(NamedTuple):
    """The moment: monotonic seconds and Unix seconds."""

    monotonic: float
    wall: float


class Classified(NamedTuple):
    """`request` is None when it is not governed and passes unlimited.

    `stranger`: it came without a usable `x-policy-uid`, so a crash will lose its place.
    `ticket`: the place in line that it shows, not yet checked. `owner`: whose a job of it is.
    `unread`: Envoy could not read its body.
    """

    request: Request | None
    pool: str
    priority: Priority
    dialect: Dialect
    stranger: bool = False
    request_id: str = ""
    ticket: str = ""
    owner: str = ""
    unread: bool = False


def classify(facts: Facts, rules: ClassifyRules, now: Now) -> Classified:
    """The request behind `facts`, or the note that it passes ungoverned."""
    headers = facts.headers
    method = headers.get(":method", "")
    path = _path(headers.get(":path") or "/")
    upgrade = method == "CONNECT" or "upgrade" in headers
    dialect = dialect_of(path, headers.get("content-type", ""))
    named = _tenant(facts, rules.tenant, dialect)
    tenant = _known(named, rules.known_tenants)
    priority = _priority(headers, tenant, rules)
    pool = None
    if (upgrade or method in rules.methods) and path.startswith(rules.paths):
        pool = _pool(facts, path, rules.pools)
    if pool is None:
        return Classified(None, "", priority, dialect)
    request = _request(facts, rules, now, (pool, priority, tenant, path, upgrade))
    stranger = request.uid != headers.get("x-policy-uid")
    request_id = headers.get("x-request-id", "")[:MAX_NAME]
    ticket = headers.get("x-queue-ticket", "")
    return Classified(
        *(request, pool, priority, dialect, stranger, request_id, ticket),
        owner=owner_name(named),
        unread=facts.body.broken,
    )


def _path(target: str) -> str:
    """The path as a model server reads it."""
    path = target.partition("?")[0]
    return unquote(path) if "%" in path else path


def _request(
    facts: Facts, rules: ClassifyRules, now: Now, who: tuple[str, Priority, str, str, bool]
) -> Request:
    pool, priority, tenant, path, upgrade = who
    headers, body = facts.headers, facts.body
    body_bytes = min(_whole(headers.get("content-length", "")), rules.max_body_bytes)
    waits_s = min(facts.time_left_s, patience_s(headers), ENDLESS_S)
    return Request(
        uid=_uid(headers.get("x-policy-uid", "")),
        pool=pool,
        priority=priority,
        arrived=now.monotonic,
        deadline=now.monotonic + min(rules.budgets_s[priority], waits_s),
        tenant=tenant,
        body_bytes=body_bytes,
        prompt_tokens=min(body_bytes // BYTES_PER_TOKEN, MAX_PROMPT_TOKENS),
        max_tokens=_count(body.max_tokens),
        model=body.model[:PATH_KEPT],
        path=path[:PATH_KEPT],
        streamed=(body.stream or _names_stream(path)) and not upgrade,  # a tunnel has no tokens
        observable=facts.observable and not upgrade,
        returning=_whole(headers.get("x-stainless-retry-count", "")) > 0,
        node=facts.node,
        arrived_wall=now.wall,
        patience_s=waits_s,
    )


def _names_stream(path: str) -> bool:
    """`/generate_stream` of TGI and Triton, `:streamGenerateContent`, `/converse-stream`."""
    return _STREAM.search(path.rpartition("/")[2]) is not None


def _pool(facts: Facts, path: str, pools: tuple[PoolRule, ...]) -> str | None:
    """The first pool that takes it. A model that is not known is any: none passes by hiding it."""
    host = facts.headers.get(":authority") or facts.headers.get("host", "")
    model = facts.body.model if facts.body.read else None
    for pool in pools:
        if pool.takes(path, host, model, (facts.route, facts.cluster)):
            return pool.name
    return None


def _priority(headers: Mapping[str, str], tenant: str, rules: ClassifyRules) -> Priority:
    """`x-request-priority`, else RFC 9218 `priority`, else the default; capped by the tenant."""
    own = headers.get("x-request-priority")
    if own is not None:
        asked = _CLASSES.get(own.strip().upper(), rules.default_class)
    else:
        asked = _from_urgency(headers.get("priority", ""), rules.default_class)
    return max(asked, rules.tenant_max_class.get(tenant, rules.default_max_class))


def _from_urgency(value: str, default: Priority) -> Priority:
    found = _URGENCY.search(value) if value else None
    if found is None:
        return default
    urgency = int(found[1])
    if urgency <= 1:
        return Priority.P0
    return Priority.P1 if urgency <= 4 else Priority.P2


def _tenant(facts: Facts, source: TenantSource, dialect: Dialect) -> str:
    if source.header:
        return bounded_name(facts.headers.get(source.header, "").strip())
    if source.metadata:
        return bounded_name(facts.tenant.strip())
    return key_hash(facts.headers, dialect)


def _known(tenant: str, known: frozenset[str]) -> str:
    """With a list of known tenants all others share one bucket: inventing names gains nothing."""
    return tenant if not tenant or not known or tenant in known else UNKNOWN_TENANT


def key_hash(headers: Mapping[str, str], dialect: Dialect) -> str:
    """A stable, irreversible name for an API key ("" = none given).

    Of several headers the one counts that this kind of API checks: otherwise a second one with
    anything in it would make a new tenant of each request.
    """
    bearer = _BEARER.sub("", headers.get("authorization", ""))
    theirs, azure = headers.get("x-api-key", ""), headers.get("api-key", "")
    order = (theirs, bearer) if dialect is Dialect.ANTHROPIC else (bearer, azure, theirs)
    key = next((found for key in order if (found := key.strip())), "")
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:16] if key else ""


def owner_name(name: str) -> str:
    """Whose a job is: the tenant that brought it, listed or not, so that those who share a turn
    do not share their jobs. Nobody can be called what stands for many."""
    name = bounded_name(name.strip())
    return name if name != UNKNOWN_TENANT else _hashed(name)


def bounded_name(name: str) -> str:
    """The name itself, or its hash when it is too long to keep."""
    if len(name) <= MAX_NAME:
        return name
    return _hashed(name)


def _hashed(name: str) -> str:
    return "sha256-" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:32]


def _uid(value: str) -> str:
    """Envoy's id of this request; a made-up one where Envoy does not stamp any."""
    usable = 0 < len(value) <= MAX_NAME and value.isascii() and value.isprintable()
    return value if usable and " " not in value else str(uuid.uuid4())


def _whole(value: str) -> int:
    """A non-negative whole number, 0 for anything else."""
    if not value:
        return 0
    usable = len(value) <= MAX_DIGITS and value.isascii() and value.isdigit()
    return int(value) if usable else 0


def _count(value: float) -> int:
    return int(min(value, MAX_OUTPUT_TOKENS)) if math.isfinite(value) and value > 0 else 0
