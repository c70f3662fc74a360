"""`/v1/embeddings` by a real model on the CPU: `python -m tests.support.minilm_server PORT`.

One thread works through what comes, in order and without a bound: past saturation its queue, and
with it the answer time, grows for as long as anyone asks. Like most model servers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from aiohttp import web

from tests.support.minilm import MiniLm, Vectors

WORKERS = 1  # of two cores; the other one is for everyone else
MODEL = "all-minilm-l6-v2"


class Server:
    """The HTTP side of the model."""

    def __init__(self) -> None:
        self._model = MiniLm()
        self._pool = ThreadPoolExecutor(WORKERS)

    def app(self) -> web.Application:
        """What is served where."""
        app = web.Application()
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        return app

    async def embeddings(self, request: web.Request) -> web.Response:
        """OpenAI's API: one text or several; vectors as numbers or as base64."""
        try:
            asked = json.loads(await request.read())
            texts = [asked["input"]] if isinstance(asked["input"], str) else list(asked["input"])
            if not texts or not all(isinstance(text, str) for text in texts):
                raise ValueError("input must be a text or several")
        except (ValueError, KeyError, TypeError) as error:
            problem = {"message": str(error), "type": "invalid_request_error"}
            return web.json_response({"error": problem}, status=400)
        loop = asyncio.get_running_loop()
        vectors, tokens = await loop.run_in_executor(self._pool, self._model.embed, texts)
        coded = asked.get("encoding_format") == "base64"
        return web.json_response(_answer(vectors, tokens, coded))

    async def models(self, _request: web.Request) -> web.Response:
        """The one model."""
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "tests"}
        return web.json_response({"object": "list", "data": [model]})

    async def health(self, _request: web.Request) -> web.Response:
        """200: the model is loaded before anything is served."""
        return web.Response()


def _answer(vectors: Vectors, tokens: int, coded: bool) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(vector, coded)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": MODEL, "usage": usage}


def _shown(vector: Vectors, coded: bool) -> str | list[float]:
    if coded:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(number) for number in np.round(vector, 7)]


if __name__ == "__main__":
    web.run_app(Server().app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
