"""The files under envoy/ that are generated: `python -m tests.support.generated_config --write`.

Without `--write` it prints the names of those that differ and exits 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from policy_server.config import load_config
from policy_server.envoy_config.command import render

FOLDER = Path(__file__).resolve().parents[2] / "envoy"
UPSTREAM = "http://127.0.0.1:8000"


def generated() -> dict[str, str]:
    """File name → content, from the defaults."""
    defaults = load_config(None, {})
    return {
        "bootstrap-gate.yaml": render(defaults, [UPSTREAM], "closed"),
        "bootstrap-gate-open.yaml": render(defaults, [UPSTREAM], "open"),
        "bootstrap-authz.yaml": render(defaults, [UPSTREAM], "closed", "authz"),
        "bootstrap-stream.yaml": render(defaults, [UPSTREAM], "closed", "stream"),
    }


def main() -> int:
    """Writes, or names what differs."""
    stale = [
        name
        for name, text in generated().items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != text
    ]
    if "--write" in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for name in stale:
            (FOLDER / name).write_text(generated()[name], "utf-8")
            print(f"wrote envoy/{name}")
        return 0
    for name in stale:
        print(f"envoy/{name} differs from the generator; run: make config")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
