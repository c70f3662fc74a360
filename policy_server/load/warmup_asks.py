"""Asks a model server what `warmup` asks, and tells "not yet" from "never".

    RefusedError    it is not there, it loads, it is full: worth another try
    HopelessError   it answered, and will answer the same for ever: a 4xx but 408, 425 and 429, a
                    redirect, 501, no list of models

Every prompt begins with a word of its own. From the second round on the same text would only
measure the prefix cache.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from typing import Any

import aiohttp

from policy_server.commands import reason
from policy_server.load.warmup_params import COMPLETIONS, EMBEDDINGS, WarmupParams
from policy_server.load.workload import CHARS_PER_TOKEN

PIECE_CHARS = 200
"""Of a refusal's body: what fits on a line or two."""
PIECE_BYTES = 4096
SHORTEST_SECRET = 4
_MAY_PASS = (408, 425, 429)
_FILLER = "warm "
_Json = dict[str, Any]


class RefusedError(Exception):
    """It did not answer as it should, and may yet; the text says how."""


class HopelessError(Exception):
    """Nor would it when asked again; the text says why, and the fix."""


class Asker:
    """One server. `hung`: the request that was given up in the middle, and how long it took."""

    def __init__(self, session: aiohttp.ClientSession, params: WarmupParams) -> None:
        self._session = session
        self._params = params
        self._model = params.model
        self._numbers = itertools.count()
        self._run = secrets.token_hex(4)
        self.hung = ""

    async def round(self) -> tuple[float, ...]:
        """Seconds per size, each to the last byte of its answer. Raises both errors."""
        if self._model is None:
            self._model = await self._first_model()
        return tuple([await self._time_of(self._model, size) for size in self._params.sizes])

    async def _time_of(self, model: str, size: int) -> float:
        began = time.monotonic()
        body = self._body(model, size)
        await self._ask(f"a prompt of {size} tokens", "POST", self._params.endpoint, body)
        return time.monotonic() - began

    async def _first_model(self) -> str:
        url, fix = self._params.models_url, "name the model with --model"
        try:
            answer = await self._ask("the list of models", "GET", url)
        except HopelessError as error:
            raise HopelessError(f"{error}; {fix}") from None
        try:
            listed = json.loads(answer)["data"]
            if not listed:
                raise RefusedError(f"{url}: it lists no model yet; {fix}")
            return str(listed[0]["id"])
        except (ValueError, TypeError, LookupError):
            raise HopelessError(f"{url}: the answer is no list of models; {fix}") from None

    async def _ask(self, what: str, method: str, url: str, body: _Json | None = None) -> bytes:
        """The body of a good answer."""
        began = time.monotonic()
        try:
            async with self._session.request(
                method, url, json=body, headers=self._params.headers, allow_redirects=False
            ) as answer:
                if 200 <= answer.status < 300:
                    return await answer.read()
                piece = await answer.content.read(PIECE_BYTES)
        except aiohttp.ClientConnectorError as error:
            raise RefusedError(f"{url}: cannot connect ({reason(error.os_error)})") from None
        except aiohttp.ClientError as error:
            said = self._hidden(str(error)) or type(error).__name__
            raise RefusedError(f"{url}: {said}") from None
        except asyncio.CancelledError:
            self.hung = f"{url}: {what} had no answer for {time.monotonic() - began:.1f} s"
            raise
        raise self._error(url, answer.status, answer.headers.get("location", ""), piece)

    def _error(self, url: str, status: int, location: str, body: bytes) -> Exception:
        said = " ".join(self._hidden(body.decode("utf-8", "replace")).split())[:PIECE_CHARS]
        text = f"{url}: status {status}"
        if 300 <= status < 400:
            return HopelessError(f"{text}, to {location}; name that in --url")
        if said:
            text += f": {said}"
        if status in (401, 403):
            text += "; give a key with --header"
        lasting = 400 <= status < 500 and status not in _MAY_PASS
        return HopelessError(text) if lasting or status == 501 else RefusedError(text)

    def _hidden(self, text: str) -> str:
        """Without what we sent in a header: a server may say it again."""
        for value in self._params.headers.values():
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= SHORTEST_SECRET:
                    text = text.replace(secret, "…")
        return text

    def _body(self, model: str, size: int) -> _Json:
        length = CHARS_PER_TOKEN * size
        first = f"{next(self._numbers)}x{self._run} "
        text = (first + _FILLER * (length // len(_FILLER) + 1))[:length]
        if self._params.kind == EMBEDDINGS:
            return {"model": model, "input": text}
        prompt: _Json = {"messages": [{"role": "user", "content": text}]}
        if self._params.kind == COMPLETIONS:
            prompt = {"prompt": text}
        more = {"max_tokens": self._params.max_tokens, "temperature": 0, "stream": False}
        return {"model": model, **prompt, **more}
