"""HTTPRoute, ClientTrafficPolicy and BackendTrafficPolicy as Envoy Gateway translates them."""

from __future__ import annotations

from tests.support.mesh.base import Plain, cluster, typed
from tests.support.mesh.fields import Fields, breakers, retry

ESCAPED = {"UnescapeAndForward": "UNESCAPE_AND_FORWARD"}
MODEL = "httproute/default/policy-server/rule/0"


def enabled(asked: str, ask: Plain, override: Plain) -> Plain:
    """What the rules turn on: the route's override everywhere, who asks where it is governed."""
    on = typed("envoy.config.route.v3.FilterConfig", config={})
    return {
        "governed": {override["name"]: on, ask["name"]: ask.get("per_route", on)},
        "passed": {override["name"]: on},
    }


def routes_of(spec: Fields, action: Plain, per_route: dict[str, Plain]) -> Plain:
    """The route table."""
    assert spec.take("parentRefs") == [{"name": "eg"}]
    routes = [
        _route(Fields(rule, "rule"), match, action, per_route)
        for rule in spec.take("rules")
        for match in rule.pop("matches")
    ]
    # the more conditions, the earlier
    routes.sort(key=lambda route: -len(route["match"].get("headers", [])))
    host = {"name": "default/eg/http/*", "domains": ["*"], "routes": routes}
    return {
        "name": "default/eg/http",
        "virtual_hosts": [host],
        "ignore_port_in_host_matching": True,
    }


def _route(rule: Fields, match: Plain, action: Plain, per_route: dict[str, Plain]) -> Plain:
    name = rule.take("name")
    (backend,) = rule.take("backendRefs")
    assert backend == {"name": "model", "namespace": "models", "port": 8000}
    found: Plain = {
        "name": f"httproute/default/policy-server/{name}",
        "match": _match(Fields(match, "match")),
        "route": action,
        "typed_per_filter_config": per_route[name],
    }
    for one in rule.take("filters"):
        if one.pop("type") == "RequestHeaderModifier":
            found["request_headers_to_remove"] = one["requestHeaderModifier"].pop("remove")
        else:
            told = one["responseHeaderModifier"].pop("set")
            found["response_headers_to_add"] = [_set(header) for header in told]
    rule.close()
    return found


def _match(match: Fields) -> Plain:
    assert match.take("path", "type") == "PathPrefix"
    prefix = match.take("path", "value")
    found: Plain = {"prefix": "/"} if prefix == "/" else {"path_separated_prefix": prefix}
    headers = []
    if match.has("method"):
        headers.append({"name": ":method", "string_match": {"exact": match.take("method")}})
    for header in match.take("headers") if match.has("headers") else []:
        assert header["type"] == "RegularExpression"
        regex = {"safe_regex": {"regex": header["value"]}}
        headers.append({"name": header["name"], "string_match": regex})
    match.close()
    return {**found, "headers": headers} if headers else found


def _set(header: Plain) -> Plain:
    return {
        "header": {"key": header["name"], "value": header["value"]},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def client_traffic(spec: Fields) -> tuple[Plain, Plain]:
    """The connection manager and the listener."""
    (target,) = spec.take("targetRefs")
    assert target == {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "eg"}
    assert spec.take("headers", "requestID") == "PreserveOrGenerate"
    early = [{"append": _set(h)} for h in spec.take("headers", "earlyRequestHeaders", "set")]
    gone = [{"remove": name} for name in spec.take("headers", "earlyRequestHeaders", "remove")]
    mutation = typed(
        "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[*early, *gone],
    )
    manager = {
        "stat_prefix": "http-10080",
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": not spec.take("path", "disableMergeSlashes"),
        "path_with_escaped_slashes_action": ESCAPED[spec.take("path", "escapedSlashesAction")],
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "http2_protocol_options": {
            "initial_stream_window_size": 65536,
            "initial_connection_window_size": 1048576,
            "max_concurrent_streams": spec.take("http2", "maxConcurrentStreams"),
        },
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "early_header_mutation_extensions": [
            {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": mutation}
        ],
        "request_timeout": spec.take("timeout", "http", "requestReceivedTimeout"),
        "stream_idle_timeout": spec.take("timeout", "http", "streamIdleTimeout"),
    }
    limit = spec.take("connection", "bufferLimit")
    assert limit.endswith("Mi")
    return manager, {"per_connection_buffer_limit_bytes": int(limit[:-2]) * 2**20}


def backend_traffic(spec: Fields, where: dict[str, int]) -> tuple[Plain, Plain, Plain]:
    """The response override, the routes' action, the model servers' cluster."""
    (target,) = spec.take("targetRefs")
    assert target.pop("group") == "gateway.networking.k8s.io"
    assert target == {"kind": "HTTPRoute", "name": "policy-server"}
    again = retry(Fields(spec.take("retry"), "retry"))
    action = {
        "cluster": MODEL,
        "timeout": spec.take("timeout", "http", "requestTimeout"),
        "retry_policy": {**again, "host_selection_retry_max_attempts": 5},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }
    options = typed(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        common_http_protocol_options={
            "idle_timeout": spec.take("timeout", "http", "connectionIdleTimeout")
        },
        explicit_http_config={"http_protocol_options": {}},
    )
    model = cluster(
        MODEL,
        where["upstream"],
        connect_timeout="10s",
        circuit_breakers=breakers(spec.take("circuitBreaker")),
        typed_extension_protocol_options={options["@type"].rpartition("/")[2]: options},
    )
    (rule,) = spec.take("responseOverride")
    return _override(Fields(rule, "responseOverride")), action, model


def _override(rule: Fields) -> Plain:
    (code,) = rule.take("match", "statusCodes")
    assert code.pop("type") == "Value"
    assert rule.take("source") == "Local"
    assert rule.take("response", "body", "type") == "Inline"
    content_type = {"name": "Content-Type", "value": rule.take("response", "contentType")}
    policy = typed(
        "envoy.extensions.http.custom_response.local_response_policy.v3.LocalResponsePolicy",
        status_code=rule.take("response", "statusCode"),
        body_format={"text_format": rule.take("response", "body", "inline")},
        response_headers_to_add=[
            _set(header) for header in (content_type, *rule.take("response", "header", "set"))
        ],
    )
    rule.close()
    matches = {"HttpResponseStatusCodeMatchInput": str(code["value"])}
    matches["HttpResponseLocalReplyMatchInput"] = "true"
    predicates = [
        {
            "single_predicate": {
                "input": {"name": kind, "typed_config": typed(f"envoy.type.matcher.v3.{kind}")},
                "value_match": {"exact": value},
            }
        }
        for kind, value in matches.items()
    ]
    action = {"name": "override", "typed_config": policy}
    matcher = {
        "predicate": {"and_matcher": {"predicate": predicates}},
        "on_match": {"action": action},
    }
    config = typed(
        "envoy.extensions.filters.http.custom_response.v3.CustomResponse",
        custom_response_matcher={"matcher_list": {"matchers": [matcher]}},
    )
    name = "envoy.filters.http.custom_response/backendtrafficpolicy/default/policy-server"
    return {"name": name, "typed_config": config}
