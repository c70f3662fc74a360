"""The parts of an Envoy that both meshes' proxies have."""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]
MANAGER = "envoy.filters.network.http_connection_manager"
MANAGER_TYPE = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def typed(kind: str, **fields: Any) -> Plain:
    """A `typed_config`."""
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def cluster(name: str, port: int, **more: Any) -> Plain:
    """A cluster of one address here, as endpoint discovery would fill it."""
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    assignment = {
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
    }
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **more}


def http2(**options: Any) -> Plain:
    """The protocol options of a cluster that speaks HTTP/2."""
    explicit = {"http2_protocol_options": options}
    return {HTTP_OPTIONS: typed(HTTP_OPTIONS, explicit_http_config=explicit)}


def bootstrap(where: dict[str, int], manager: Plain, clusters: list[Plain], **more: Any) -> Plain:
    """A proxy of one listener."""
    config = {"@type": f"{MANAGER_TYPE}.HttpConnectionManager", **manager}
    listener = {
        "name": "gateway",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": where["gateway"]}},
        "filter_chains": [{"filters": [{"name": MANAGER, "typed_config": config}]}],
        **more.pop("listener", {}),
    }
    admin = {"socket_address": {"address": "127.0.0.1", "port_value": where["admin"]}}
    return {
        "admin": {"address": admin},
        "static_resources": {"listeners": [listener], "clusters": clusters},
        **more,
    }


def stdout_log(json_format: Plain | None = None) -> Plain:
    """A mesh's usual access log; without a format of its own in Envoy's."""
    own = {} if json_format is None else {"log_format": {"json_format": json_format}}
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": typed(
            "envoy.extensions.access_loggers.file.v3.FileAccessLog", path="/dev/stdout", **own
        ),
    }
