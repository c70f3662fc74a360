"""Calls through the official SDKs for Python, as an application makes them, and how each ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import cycle
from types import TracebackType
from typing import Any, Self

import anthropic
import openai

MESSAGES: Any = [{"role": "user", "content": "hello"}]
TENANTS = 5
"""Named, so that their retry budgets count: who waits as told must never meet them."""
RETRY_COUNT = "x-stainless-retry-count"


class Ended(Enum):
    """How a call ended for the application."""

    SERVED = "served"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `began_s` on the run's clock; `retries` that the SDK made by itself."""

    began_s: float
    sdk: str
    priority: str
    ended: Ended
    retries: int


class Sdks:
    """One client of each kind. `max_retries` None = the SDK's own default."""

    def __init__(self, url: str, tokens: int, max_retries: int | None = None) -> None:
        more: dict[str, Any] = {} if max_retries is None else {"max_retries": max_retries}
        self._tokens = tokens
        self._tenant = cycle(f"t{number}" for number in range(TENANTS))
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", **more)
        self._anthropic = anthropic.AsyncAnthropic(base_url=url, api_key="none", **more)
        self._start = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(RuntimeError):
            await self._openai.close()
            await self._anthropic.close()

    async def run(self, schedule: Iterable[tuple[float, str]]) -> list[Call]:
        """Begin each (seconds, class) at its moment, whatever the others do; wait for all."""
        self._start = time.monotonic()
        tasks = []
        for index, (at_s, priority) in enumerate(schedule):
            await asyncio.sleep(max(0.0, at_s - self._now()))
            one = self._ask_openai if index % 2 else self._ask_anthropic
            tasks.append(asyncio.create_task(one(priority)))
        return list(await asyncio.gather(*tasks))

    async def _ask_openai(self, priority: str) -> Call:
        began, create = self._now(), self._openai.chat.completions.with_raw_response.create
        headers = {"x-request-priority": priority, "x-tenant-id": next(self._tenant)}
        try:
            answer = await create(
                model="m", messages=MESSAGES, max_tokens=self._tokens, extra_headers=headers
            )
        except openai.APIError as error:
            return _failed(began, "openai", priority, error)
        return Call(began, "openai", priority, Ended.SERVED, answer.retries_taken)

    async def _ask_anthropic(self, priority: str) -> Call:
        began, create = self._now(), self._anthropic.messages.with_raw_response.create
        headers = {"x-request-priority": priority, "x-tenant-id": next(self._tenant)}
        try:
            answer = await create(
                model="m", messages=MESSAGES, max_tokens=self._tokens, extra_headers=headers
            )
        except anthropic.APIError as error:
            return _failed(began, "anthropic", priority, error)
        return Call(began, "anthropic", priority, Ended.SERVED, answer.retries_taken)

    def _now(self) -> float:
        return time.monotonic() - self._start


def _failed(began: float, sdk: str, priority: str, error: Any) -> Call:
    """What the last attempt says of those before it."""
    sent = getattr(error, "request", None)
    retries = int(sent.headers.get(RETRY_COUNT, 0)) if sent is not None else 0
    refused = getattr(error, "status_code", 0) == 429
    return Call(began, sdk, priority, Ended.REFUSED if refused else Ended.FAILED, retries)
