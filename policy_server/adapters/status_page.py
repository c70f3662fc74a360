"""The page at `/`: one HTML document without outside parts, and the policy that keeps it that way.

Its three files in `page/` are joined here; nothing is built or fetched.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources


def load_page() -> tuple[str, str]:
    """The page and its Content-Security-Policy: only its own script and style run.

    Tenants' names come from clients. The page writes them as text; should that ever slip, the
    policy still keeps them from becoming code.
    """
    folder = resources.files(__package__).joinpath("page")
    page, style, script = (
        folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    page = page.replace("/* page.css */", style).replace("/* page.js */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
