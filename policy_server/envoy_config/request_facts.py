"""What the gate learns beside the headers, put into dynamic metadata by Envoy's own filters.

`json_to_metadata` lifts a few fields out of a JSON body, so that the gate stays one message and a
held request can be sent again after a crash. It looks at every body whatever type it claims to be,
as many model servers do, and waits for all of it: who stops in the middle of a body gets no seat.
A body that it can't read says so and passes on.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation,
    HeaderMutationRemoveOnMatch,
)
from envoy_data_plane.envoy.config.core.v3 import TypedExtensionConfig
from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata.v3 import (
    Config as HeaderToMetadata,
)
from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata.v3 import (
    ConfigKeyValuePair,
    ConfigRule,
    ConfigValueType,
)
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
    JsonToMetadataValueType,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Value

from policy_server.envoy_config.wire import (
    OBSERVE_HEADER,
    UID_HEADER,
    extension,
    http_filter,
    set_header,
)

REQUEST_NAMESPACE = "policy.request"
BODY_FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens")
READ, UNREAD = "read", "unread"
"""A body without a model that was read; one that is no JSON as Envoy understands it."""
ANY_TYPE = "(?s).*"
UID, BODY, COIN = "policy.uid", "policy.body", "policy.coin"


def identity() -> TypedExtensionConfig:
    """Before any filter: nothing that claims to be ours comes from outside, each request gets
    its own id, and filters, re-sends and the access log all see the same one."""
    ours = HeaderMutationRemoveOnMatch(key_matcher=StringMatcher(prefix="x-policy-"))
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        EarlyHeaderMutation(
            mutations=[
                HeaderMutation(remove_on_match=ours),
                HeaderMutation(append=set_header(UID_HEADER, "%UNIQUE_ID%")),
            ]
        ),
    )


def uid_filter() -> HttpFilter:
    """Copies the identity to where it outlives the router, which strips the header: the access
    log and the observer read it there. Its presence also says that the request is governed."""
    return _header_filter(UID, UID_HEADER, "uid", remove=False)


def coin_filter() -> HttpFilter:
    """Takes the gate's coin for the observer. It must not be read from the header: a refusal of
    the gate itself passes the observer without any request headers, and would be observed."""
    return _header_filter(COIN, OBSERVE_HEADER, "observe", remove=True)


def _header_filter(name: str, header: str, key: str, *, remove: bool) -> HttpFilter:
    pair = ConfigKeyValuePair(
        metadata_namespace=REQUEST_NAMESPACE, key=key, type=ConfigValueType.STRING
    )
    rule = ConfigRule(header=header, on_header_present=pair, remove=remove)
    return http_filter(name, HeaderToMetadata(request_rules=[rule]), disabled=True)


def body_filter() -> HttpFilter:
    """The fields of a JSON body that classification reads, typed as they came. Never on tunnels
    and gRPC streams: it waits for the end of the body."""
    first, *others = (_lift(name) for name in BODY_FIELDS)
    first.on_missing, first.on_error = _mark(READ), _mark(UNREAD)
    rules = JsonToMetadataMatchRules(
        rules=[first, *others],
        allow_content_types_regex=RegexMatcher(regex=ANY_TYPE),
        allow_empty_content_type=True,
    )
    return http_filter(BODY, JsonToMetadata(request_rules=rules), disabled=True)


def _lift(name: str) -> JsonToMetadataRule:
    return JsonToMetadataRule(
        selectors=[JsonToMetadataSelector(key=name)],
        on_present=JsonToMetadataKeyValuePair(
            metadata_namespace=REQUEST_NAMESPACE,
            key=name,
            type=JsonToMetadataValueType.PROTOBUF_VALUE,
        ),
    )


def _mark(key: str) -> JsonToMetadataKeyValuePair:
    return JsonToMetadataKeyValuePair(
        metadata_namespace=REQUEST_NAMESPACE, key=key, value=Value(bool_value=True)
    )
