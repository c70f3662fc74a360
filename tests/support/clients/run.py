"""The real clients as commands, each with its default settings."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.foreign import foreign_clients

HERE = Path(__file__).parent
BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
TIMEOUT_S = 120

Command = Callable[[str, str], list[str]]
"""(URL, mode) → the command line."""


def _script(name: str) -> Command:
    return lambda url, mode: [sys.executable, str(HERE / name), url, mode]


def _litellm(url: str, mode: str) -> list[str]:
    return [foreign_clients().python, str(HERE / "litellm_client.py"), url, mode]


def _node(url: str, mode: str) -> list[str]:
    there = foreign_clients()
    return [there.node, str(HERE / "openai_client.mjs"), there.packages, url, mode]


def _curl(url: str, _mode: str) -> list[str]:
    binary = shutil.which("curl")
    if binary is None:
        pytest.fail("no curl on the PATH: apt-get install curl")
    command = [binary, "--silent", "--show-error", "--retry", "2", "--json", json.dumps(BODY)]
    return [*command, f"{url}/v1/chat/completions"]


CLIENTS: dict[str, Command] = {
    "openai-python": _script("openai_client.py"),
    "anthropic-python": _script("anthropic_client.py"),
    "openai-node": _node,
    "litellm": _litellm,
    "urllib3": _script("urllib3_client.py"),
    "curl": _curl,
}


async def run_client(name: str, url: str, mode: str = "plain") -> dict[str, Any]:
    """What the client made of it: `text` when it was answered, else `error` and `message`."""
    command = CLIENTS[name](url, mode)
    plain = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=plain)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = _last_document(out.decode())
    assert found is not None, f"{name}: {err.decode()[-3000:]}"
    return _of_curl(found) if name == "curl" else found


def _last_document(text: str) -> dict[str, Any] | None:
    """The last JSON object printed: litellm prints hints before it, curl each refusal's body."""
    found, at, decoder = None, 0, json.JSONDecoder()
    while (at := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
    return found


def _of_curl(document: dict[str, Any]) -> dict[str, Any]:
    """curl prints what came; the others say what it meant."""
    if isinstance(document.get("error"), dict):
        return {"error": "429", "message": document["error"]["message"]}
    return {"text": document["choices"][0]["message"]["content"]}
