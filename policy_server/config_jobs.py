"""What both sides of the jobs' ways derive from the configuration.

Jobs are on when there is a way to send them: `jobs.via`, which `gateway` sets by itself. When that
is an address of this machine, the Envoy of this configuration listens there, for jobs only.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from urllib.parse import urlsplit

from policy_server.config import Config
from policy_server.config_source import ConfigError
from policy_server.config_types import MIN_TOKEN_CHARS

CALLER_HEADER, TENANT_HEADER = "x-policy-caller", "x-policy-tenant"
"""Set by Envoy on `/policy/`: that it is Envoy who asks, and for whom."""
PASSPORT_HEADER = "x-policy-job"
"""On a job that the dispatcher sends through Envoy; see `jobs.passport`."""
LOCAL_HEADER = "x-policy-local"
"""On answers that no model server gave, or that it broke off: Envoy's own, with its flags that say
why, and the gate's. Envoy takes it off what model servers answer."""
HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "expect"),
    }
)
"""Headers of one connection: neither sent on with a job nor kept of its answer."""
JOBS_PATH = "/policy/jobs"
TARGET_CHARS = "".join(map(chr, range(0x21, 0x7F)))
"""What goes over the wire as it is in a request target; everything else is escaped."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_CLIENT = "client"


def takes_jobs(config: Config) -> bool:
    """Whether jobs are accepted."""
    return config.jobs.enabled and config.jobs.via is not None


def jobs_port(config: Config) -> int | None:
    """Where Envoy listens for jobs; None = somewhere else, or nowhere."""
    if not takes_jobs(config):
        return None
    parts = urlsplit(str(config.jobs.via))
    return parts.port or 80 if parts.hostname in LOOPBACK else None


def caller_mark(config: Config) -> str:
    """What Envoy puts into `CALLER_HEADER`. With an admin token it takes the token to make it, so
    that nobody else with a way to the port can pass for Envoy. Raises ConfigError: what is made of
    an empty file anybody could make."""
    path = config.server.admin_token_file
    if path is None:
        return _CLIENT
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"server.admin_token_file: {path}: {error.strerror}") from None
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"server.admin_token_file: {path}: needs at least {MIN_TOKEN_CHARS} characters, "
            f"has {len(token)}"
        )
    return hmac.new(token, b"policy-server gateway", sha256).hexdigest()
