"""The page at `/`: one HTML file without outside parts, and the policy that keeps it that way."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources


def load_page() -> tuple[str, str]:
    """The page and its Content-Security-Policy: only its own script and style run.

    Tenants' names come from clients. The page writes them as text; should that ever slip, the
    policy still keeps them from becoming code.
    """
    page = resources.files(__package__).joinpath("status_page.html").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash_of('script', page)}; "
        f"style-src {_hash_of('style', page)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _hash_of(tag: str, page: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert match is not None, f"the status page has no <{tag}>"
    digest = hashlib.sha256(match[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
