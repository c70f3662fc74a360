"""The configuration file: defaults of the contract, and one clear line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policy_server.config import Config, ConfigError, load_config, split_host_port, to_pool_params
from policy_server.core.params import PoolParams

CONTRACT = """
server:   {grpc: 127.0.0.1:9002, http: 127.0.0.1:9003, tls: null, admin_token_file: null}
journal:  {path: data/journal.db, fsync: always, fsync_interval_ms: 50}
govern:   {methods: [POST], paths: ["/"]}
pools:
  - name: default
    match: {path_prefix: /, host: null, route: null, cluster: null, model: null}
    limit: {algorithm: vegas, initial: 16, min: 1, max: 1000}
    slo: {ttft_s: null, tpot_s: null}
    observe: {max_messages_per_s: 500}
    load_reports: {orca: true, scrape: [], interval_s: 1.0}
    backends: {probe: [], envoy_admin: null, count: null}
    no_backend_wait_s: 300
classes:
  P0: {max_wait_s: 5, share: 0.6}
  P1: {max_wait_s: 15, share: 0.2}
  P2: {max_wait_s: 45, share: 0.05}
default_class: P1
room:     {max_requests: 10000, max_bytes: 256MiB, tenant_max_requests: 2000}
tenants:  {from: "header:x-tenant-id", known: [], weights: {}, max_class: {}, default_max_class: P0}
retry_after: {min_s: 1, max_s: 55}
jobs:     {enabled: true, via: null, max_body: 16MiB, queue_ttl_s: 86400, result_ttl_s: 86400,
           share: 0.02, webhooks: {allow: [], secrets: {}}}
"""


def load(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> Config:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return load_config(file, env or {})


def problem_of(file: Path | None, env: dict[str, str]) -> str:
    try:
        load_config(file, env)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_contracts_file_is_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, CONTRACT) == load_config(None, {}) == load(tmp_path, "")


def test_the_core_gets_the_defaults_it_has_itself() -> None:
    assert to_pool_params(load_config(None, {})) == [PoolParams(name="default")]


def test_a_section_left_empty_means_its_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "server:\nclasses:\n  P0:\n") == load_config(None, {})


def test_a_class_keeps_the_defaults_of_the_keys_not_given(tmp_path: Path) -> None:
    config = load(tmp_path, "classes: {P0: {max_wait_s: 2}}")
    assert (config.classes.P0.max_wait_s, config.classes.P0.share) == (2, 0.6)


def test_a_webhooks_secret_is_not_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "jobs: {webhooks: {secrets: {a: hush}}}")
    assert "hush" not in str(caught.value)


def test_sizes_have_units(tmp_path: Path) -> None:
    assert load(tmp_path, "room: {max_bytes: 3GiB}").room.max_bytes == 3 * 1024**3


def test_the_start_limit_follows_a_lower_maximum(tmp_path: Path) -> None:
    assert load(tmp_path, "pools: [{limit: {max: 4}}]").pools[0].limit.initial == 4


def test_the_longest_hold_counts_scale_from_zero_only_when_backends_are_known(
    tmp_path: Path,
) -> None:
    assert load(tmp_path, "").longest_hold_s == 45
    assert load(tmp_path, "pools: [{backends: {count: 1}}]").longest_hold_s == 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server:\n  grcp: h:1\n", ":2: server.grcp: unknown key; did you mean 'grpc'?"),
        ("pols: 3", ":1: pols: unknown key; did you mean 'pools'?"),
        ("room: {max_wait_s: 3}", "room.max_wait_s: unknown key; it belongs at classes.P0.max"),
        ("server:\n  grpc: 9002\n", ":2: server.grpc: '9002' is not host:port; write for exa"),
        ("server: {grpc: 'a:1', http: 'a:1'}", "server: grpc and http are both a:1; give them"),
        ("pools:\n  - name: a\n  - name: b\n", "pool 'b' can never match: 'a' above it takes"),
        ("pools: [{match: {model: x}}, {name: default}]", "two pools are named 'default'"),
        ("pools: []", "pools: no pool is left; add one"),
        ("pools: 3", "pools: must be a list such as [a, b], got 3"),
        ("pools: [{limit: {initial: 9, max: 3}}]", "needs min <= initial <= max, but min is 1"),
        ("pools: [{limit: {initial: .nan}}]", "pools[0].limit.initial: input should be a finite"),
        ("pools: [{limit: {algorithm: x}}]", "input should be 'vegas', 'gradient', 'aimd' or"),
        ("pools: [{match: {path_prefix: v1}}]", "'v1' does not start with /; write for example"),
        ("classes: {P0: {share: .9}}", "the shares of classes and jobs add up to 1.17; lower"),
        ("classes:\n  P0:\n    max_wait_s: 0\n", ":3: classes.P0.max_wait_s: input should be gr"),
        ("room: {max_bytes: 3 apples}", "'3 apples' is no size; write for example 256MiB"),
        ("jobs: {max_body: 3GiB}", "jobs.max_body: input should be less than or equal to"),
        ("tenants: {from: jwt}", "'jwt' names no source; write header:NAME, metadata:"),
        ("tenants: {from: 'header:Authorization'}", "is a secret, which would be shown"),
        ("jobs: {tenant_max_bytes: 8MiB}", "tenant_max_bytes is below max_body, 16.0MiB: the larg"),
        ("jobs: {webhooks: {allow: ['http://a']}}", "'http://a' is no host or network; write"),
        ("jobs: {webhooks: {secrets: {a: hush}}}", "jobs.webhooks.secrets.a: is no whsec_ and"),
        ("retry_after: {max_s: 90}", "retry_after.max_s: input should be less than or equal to"),
        ("server:\n  grpc: a:1\n  grpc: b:2\n", ":3: server.grpc: already set on line 2; remove"),
        ("a: [", "not valid YAML"),
        ("- 1", "the file must hold keys such as `pools:`"),
        ("server: {tls: {cert: c.pem}}", "server.tls.key: required here but missing; add it"),
        ("default_class: p9", "default_class: input should be 'P0', 'P1' or 'P2', got 'p9'"),
    ],
)
def test_a_mistake_is_one_line_with_place_key_and_fix(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert str(tmp_path / "policy.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pools_that_an_earlier_one_only_partly_covers_are_fine(tmp_path: Path) -> None:
    text = "pools: [{match: {model: 'llama*'}}, {name: v1, match: {path_prefix: /v1}}, {name: b}]"
    assert [pool.name for pool in load(tmp_path, text).pools] == ["default", "v1", "b"]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; check the --config path"):
        load_config(tmp_path / "nowhere.yaml", {})


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    env = {
        "POLICY_SERVER__GRPC": "0.0.0.0:7000",
        "POLICY_SERVER__HTTP": "[::1]:7001",
        "POLICY_CLASSES__P0__MAX_WAIT_S": "7",
        "POLICY_POOLS__0__LIMIT__MAX": "50",
        "POLICY_DEFAULT_CLASS": "P2",
        "POLICY_TENANTS__WEIGHTS__Acme": "3",
        "POLICY_ENFORCEMENT": "some other program's variable",
        "HOME": "/",
    }
    config = load(tmp_path, "server: {grpc: 127.0.0.1:9002}\n", env)
    assert (config.server.grpc, config.server.http) == ("0.0.0.0:7000", "[::1]:7001")
    assert config.classes.P0.max_wait_s == 7
    assert config.pools[0].limit.max == 50
    assert config.default_class == "P2"
    assert config.tenants.weights == {"Acme": 3}


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("POLICY_SERVR__GRPC", "x", "variable POLICY_SERVR__GRPC: no key 'servr'; did you mean"),
        ("POLICY_SERVER__GRPC", "x", "variable POLICY_SERVER__GRPC: server.grpc: 'x' is not host"),
        ("POLICY_POOLS__7__NAME", "x", "variable POLICY_POOLS__7__NAME: index 7 is past the end"),
        ("POLICY_ROOM__MAX_BYTES", "[", "POLICY_ROOM__MAX_BYTES: room.max_bytes: '[' is no size"),
        ("POLICY_SERVER__GRPC__X", "1", "variable POLICY_SERVER__GRPC__X"),
        ("POLICY_POOLS__NAME", "a", "variable POLICY_POOLS__NAME"),
    ],
)
def test_a_wrong_override_names_its_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {variable: value})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
keys = st.sampled_from([*Config.model_fields, "name", "match", "limit", "P0", "share", "from", "x"])
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | scalars, inner)
)


@given(document=documents)
def test_any_document_is_a_config_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    assert len(problem_of(file, {}).splitlines()) <= 1


@given(text=st.text(max_size=60))
def test_any_text_is_a_config_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "text.yaml"
    file.write_text(text, encoding="utf-8")
    assert len(problem_of(file, {}).splitlines()) <= 1


@given(
    name=st.from_regex(r"POLICY_[A-Z_0-9]{1,12}(__[A-Z_0-9]{1,8}){0,4}", fullmatch=True),
    value=st.text(max_size=20),
)
def test_any_environment_is_a_config_or_one_line(name: str, value: str) -> None:
    assert len(problem_of(None, {name: value}).splitlines()) <= 1


@given(text=st.text(max_size=30))
def test_host_port_is_parsed_or_refused(text: str) -> None:
    try:
        host, port = split_host_port(text)
    except ValueError:
        return
    assert host
    assert 0 < port < 65536


def test_readiness_has_one_source(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("pools: [{backends: {count: 2, probe: [http://a/health]}}]")
    with pytest.raises(ConfigError, match="probe and count may disagree"):
        load_config(file, {})


def test_a_pool_holds_for_a_backend_only_when_it_knows_them(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("pools: [{name: a, match: {model: x}, backends: {count: 0}}, {name: b}]")
    told, blind = to_pool_params(load_config(file, {}))
    assert (told.no_backend_wait_s, blind.no_backend_wait_s) == (300.0, None)
