"""Filters that run for some requests only, by a matcher in front of them.

Where the routes are ours they say what is governed. In a mesh they are not, so each filter brings
its own condition.
"""

from __future__ import annotations

import re

from envoy_data_plane.envoy.config.core.v3 import TypedExtensionConfig
from envoy_data_plane.envoy.extensions.common.matching.v3 import ExtensionWithMatcher
from envoy_data_plane.envoy.extensions.filters.common.matcher.action.v3 import SkipFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import HttpRequestHeaderMatchInput
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.type.matcher.v3 import (
    Matcher,
    MatcherMatcherList,
    MatcherMatcherListFieldMatcher,
    MatcherMatcherListPredicate,
    MatcherMatcherListPredicatePredicateList,
    MatcherMatcherListPredicateSinglePredicate,
    MatcherOnMatch,
    RegexMatcher,
    RegexMatcherGoogleRe2,
    StringMatcher,
)

from policy_server.config import Config
from policy_server.envoy_config.paths import spellings
from policy_server.envoy_config.wire import GRPC_TYPE, xds_extension


def skip_unless(
    picked: MatcherMatcherListPredicate, extension: TypedExtensionConfig
) -> ExtensionWithMatcher:
    """The filter, skipped unless `picked` holds when the request headers are read."""
    skip = MatcherMatcherListFieldMatcher(
        predicate=MatcherMatcherListPredicate(not_matcher=picked),
        on_match=MatcherOnMatch(action=xds_extension("skip", SkipFilter())),
    )
    return ExtensionWithMatcher(
        xds_matcher=Matcher(matcher_list=MatcherMatcherList(matchers=[skip])),
        extension_config=extension,
    )


def only_governed(config: Config, inner: HttpFilter) -> HttpFilter:
    """The filter, always on, but for governed requests only."""
    return _only(_governed(config), inner)


def only_whole(config: Config, inner: HttpFilter) -> HttpFilter:
    """The same for a filter that waits for the whole body: not for tunnels and gRPC streams."""
    endless = _any_of([_matches("upgrade", ".*"), _matches("content-type", f"(?i){GRPC_TYPE}.*")])
    return _only(
        _all_of([_governed(config), MatcherMatcherListPredicate(not_matcher=endless)]), inner
    )


def _only(picked: MatcherMatcherListPredicate, inner: HttpFilter) -> HttpFilter:
    extension = TypedExtensionConfig(name=inner.name, typed_config=inner.typed_config)
    return HttpFilter(name=inner.name, typed_config=Any.pack(skip_unless(picked, extension)))


def _governed(config: Config) -> MatcherMatcherListPredicate:
    """The configured methods and all upgrades, on the configured paths."""
    everywhere = "/" in config.govern.paths
    methods = [*config.govern.methods, *(["CONNECT"] if everywhere else [])]
    by_method = [_matches(":method", "|".join(re.escape(m) for m in methods))] if methods else []
    by_kind = _any_of([*by_method, _matches("upgrade", ".*")])
    if everywhere:
        return by_kind
    on_path = _any_of([_matches(":path", spellings(path)) for path in config.govern.paths])
    return _all_of([by_kind, on_path])


def _all_of(predicates: list[MatcherMatcherListPredicate]) -> MatcherMatcherListPredicate:
    return MatcherMatcherListPredicate(
        and_matcher=MatcherMatcherListPredicatePredicateList(predicate=predicates)
    )


def _any_of(predicates: list[MatcherMatcherListPredicate]) -> MatcherMatcherListPredicate:
    if len(predicates) == 1:
        return predicates[0]
    return MatcherMatcherListPredicate(
        or_matcher=MatcherMatcherListPredicatePredicateList(predicate=predicates)
    )


def _matches(header: str, regex: str) -> MatcherMatcherListPredicate:
    pattern = RegexMatcher(google_re2=RegexMatcherGoogleRe2(), regex=regex)
    return _header(header, StringMatcher(safe_regex=pattern))


def _header(name: str, match: StringMatcher) -> MatcherMatcherListPredicate:
    return MatcherMatcherListPredicate(
        single_predicate=MatcherMatcherListPredicateSinglePredicate(
            input=xds_extension(name, HttpRequestHeaderMatchInput(header_name=name)),
            value_match=match,
        )
    )
