"""The local rate limit in front of the gate: the policy server's own overload protection.

One policy server decides a known number of requests per second. What comes above is refused by
Envoy at once, the less important first: P0 draws from a bucket of its own as large as the whole
ceiling, everybody else from one of three fifths of it. So a flood of P1 and P2 leaves P0 both its
tokens and a policy server that is not saturated.
"""

from __future__ import annotations

from dataclasses import replace

from envoy_data_plane.envoy.config.core.v3 import RuntimeFractionalPercent
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RateLimit,
    RateLimitAction,
    RateLimitActionHeaderValueMatch,
)
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    LocalRateLimitDescriptor,
    RateLimitDescriptorEntry,
)
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.envoy.type.v3 import (
    FractionalPercent,
    FractionalPercentDenominatorType,
    HttpStatus,
    StatusCode,
    TokenBucket,
)

from policy_server.envoy_config.wire import seconds

NAME = "policy.ratelimit"
LOWER_CLASSES_SHARE = 0.6
API_SHARE = 0.5
# Seconds of the rate that may come in one instant: a burst the gate works off before anybody's
# wait budget ends.
BURST_S = 2.0
FILL_INTERVAL_S = 0.05
_KEY = "class"
# Without x-request-priority, RFC 9218 urgency 0 and 1 mean P0.
_URGENT = r"(.*[,\s])?u=[01]([,;\s].*)?"


def local_rate_limit(rate_per_s: int) -> LocalRateLimit:
    """The filter for `rate_per_s` decisions a second; its answer is shaped in `local_reply`."""
    always = RuntimeFractionalPercent(
        default_value=FractionalPercent(
            numerator=100, denominator=FractionalPercentDenominatorType.HUNDRED
        )
    )
    return LocalRateLimit(
        stat_prefix="policy",
        status=HttpStatus(code=StatusCode.TooManyRequests),
        token_bucket=_bucket(rate_per_s * LOWER_CLASSES_SHARE),
        filter_enabled=always,
        filter_enforced=always,
        rate_limits=[_p0(_priority_header()), _p0(_urgency_header())],
        descriptors=[
            LocalRateLimitDescriptor(
                entries=[RateLimitDescriptorEntry(key=_KEY, value="P0")],
                token_bucket=_bucket(rate_per_s),
            )
        ],
        always_consume_default_token_bucket=False,
        rate_limited_as_resource_exhausted=True,
    )


def api_rate_limit(rate_per_s: int) -> LocalRateLimit:
    """The same for the HTTP API of the jobs, which the thread that decides answers as well."""
    limit = local_rate_limit(rate_per_s)
    return replace(
        limit,
        stat_prefix="policy_api",
        token_bucket=_bucket(rate_per_s * API_SHARE),
        rate_limits=[],
        descriptors=[],
    )


def _bucket(rate_per_s: float) -> TokenBucket:
    fill = max(1, int(rate_per_s * FILL_INTERVAL_S))
    return TokenBucket(
        max_tokens=max(1, int(rate_per_s * BURST_S)),
        tokens_per_fill=fill,
        fill_interval=seconds(fill / rate_per_s),
    )


def _p0(headers: list[HeaderMatcher]) -> RateLimit:
    match = RateLimitActionHeaderValueMatch(
        descriptor_key=_KEY, descriptor_value="P0", headers=headers
    )
    return RateLimit(actions=[RateLimitAction(header_value_match=match)])


def _priority_header() -> list[HeaderMatcher]:
    return [_matches("x-request-priority", "[Pp]?0")]


def _urgency_header() -> list[HeaderMatcher]:
    absent = HeaderMatcher(name="x-request-priority", present_match=True, invert_match=True)
    return [absent, _matches("priority", _URGENT)]


def _matches(name: str, regex: str) -> HeaderMatcher:
    matcher = StringMatcher(safe_regex=RegexMatcher(regex=regex))
    return HeaderMatcher(name=name, string_match=matcher)
