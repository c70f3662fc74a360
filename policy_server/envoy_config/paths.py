"""Governed paths in all their spellings.

A model server decodes `%76` to `v` before it looks for a route, Envoy does not: `/%761/chat` would
be another path to the gateway than to the model server. So a path is matched by a pattern that
takes each of its characters plain or encoded. What else makes paths look different (`//`, `/./`,
`/../`, `%2F`) Envoy takes back itself, see `listener`.
"""

from __future__ import annotations

import re


def spellings(prefix: str) -> str:
    """A pattern (RE2) for whole paths that begin with `prefix`, however it is written."""
    return "".join(map(_spellings, prefix)) + ".*"


def _spellings(character: str) -> str:
    encoded = "".join(f"%{byte:02X}" for byte in character.encode())
    digits = "".join(f"[{c}{c.lower()}]" if c.isalpha() else c for c in encoded)
    plain = re.escape(character) if character.isascii() else ""
    return f"(?:{plain}|{digits})" if plain else digits
