"""What `warmup` is told, checked, and what follows from the URL: endpoint, kind, list of models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"
KINDS = (CHAT, COMPLETIONS, EMBEDDINGS)
"""How a path ends and what is spoken there; the first that fits."""


@dataclass(frozen=True, slots=True)
class WarmupParams:
    """`url`: the server, or the whole URL of the endpoint. `model`: None = the first it lists.
    Sizes in prompt tokens, times in s. `headers` may hold a key and are never shown."""

    url: str
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sizes: tuple[int, ...] = (16, 256, 1024)
    max_tokens: int = 8
    max_rounds: int = 10
    max_s: float = 120.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"--url {self.url!r} is no URL; write for example http://127.0.0.1:8000"
            )
        if not self.sizes or min(self.sizes) < 1 or max(self.sizes) > 1_000_000:
            raise ValueError("--sizes: each size is 1 to 1000000 prompt tokens; write 16,256,1024")
        if self.max_rounds < 2:
            raise ValueError("--rounds: it takes two to see that latency has settled")
        if self.max_tokens < 1 or not 0.0 < self.max_s < math.inf:
            raise ValueError("--tokens and --seconds must be above 0")

    @property
    def endpoint(self) -> str:
        """Where the requests go."""
        has_path = urlsplit(self.url).path.strip("/")
        return self.url if has_path else self.url.rstrip("/") + "/v1" + CHAT

    @property
    def kind(self) -> str:
        """One of KINDS; a path that is none of them is spoken to as in a chat."""
        path = urlsplit(self.endpoint).path.rstrip("/")
        return next((kind for kind in KINDS if path.endswith(kind)), CHAT)

    @property
    def models_url(self) -> str:
        """The list of models beside the endpoint."""
        parts = urlsplit(self.endpoint)
        path = parts.path.rstrip("/")
        base = path.removesuffix(self.kind) if path.endswith(self.kind) else "/v1"
        return urlunsplit((parts.scheme, parts.netloc, f"{base}/models", "", ""))


def parse_sizes(text: str) -> tuple[int, ...]:
    """`16,256` as numbers; ValueError when they are none."""
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ValueError(f"--sizes {text!r}: not numbers; write for example 16,256,1024")
    return tuple(int(part) for part in parts)
