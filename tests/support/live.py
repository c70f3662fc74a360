"""A running stack with a back end that echoes and several Envoys, and what is true of it whatever
sets Envoy up: our bootstrap in one wiring or another, or a mesh.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from policy_server.envoy_config.options import Wiring
from tests.support.echo_upstream import EchoUpstream
from tests.support.stack import Process, Stack, stop

CONFIG: dict[str, Any] = {
    "pools": [{"name": "default", "limit": {"algorithm": "fixed", "initial": 1}}],
    "classes": {name: {"max_wait_s": 60} for name in ("P0", "P1", "P2")},
}
CHAT = "/v1/chat/completions"
P0 = {"x-request-priority": "0"}
"""On a busy machine the policy server may lag and refuse the lower classes: no case for here."""


@dataclass
class Answer:
    """What a client got. `broken`: the connection ended before the body did."""

    status: int
    headers: Any
    body: bytes
    broken: bool = False

    @property
    def document(self) -> Any:
        """The JSON body."""
        return json.loads(self.body)


@dataclass
class Envoy:
    """One Envoy and where clients reach it."""

    process: Process
    url: str


@dataclass
class Live(Stack):
    """The running stack. `echo` is the model server."""

    wiring: Wiring = "gate"
    echo: EchoUpstream = field(default_factory=EchoUpstream)
    begun: int = 0
    """Answers of which a client has seen the head."""
    envoys: dict[str, Envoy] = field(default_factory=dict)

    @property
    def survives(self) -> bool:
        """Whether an answer in flight does not depend on the policy server."""
        return self.wiring != "stream"

    def url_of(self, path: str, via: str = "near") -> str:
        """A path at one of the Envoys."""
        return self.envoys[via].url + path

    async def post(self, path: str = CHAT, via: str = "near", **more: Any) -> Answer:
        """One POST of class P0, read for as long as anything comes."""
        body = b""
        headers = {**P0, **more.pop("headers", {})}
        async with self.client.post(self.url_of(path, via), headers=headers, **more) as answer:
            self.begun += 1
            try:
                async for chunk in answer.content.iter_any():
                    body += chunk
            except aiohttp.ClientError:
                return Answer(answer.status, answer.headers, body, broken=True)
            return Answer(answer.status, answer.headers, body)

    def start_post(self, *arguments: Any, **more: Any) -> asyncio.Task[Answer]:
        """The same, in the background."""
        return asyncio.create_task(self.post(*arguments, **more))

    async def busy(
        self, path: str = "/slow", via: str = "near", **more: Any
    ) -> asyncio.Task[Answer]:
        """Take the one slot until the model server's `finish`; `/half` has begun to answer."""
        before, begun = len(self.echo.requests), self.begun
        task = self.start_post(path, via, **more)
        async with asyncio.timeout(20):
            while len(self.echo.requests) == before and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert not task.done(), task.result()
        await self.until(waiting=0, inflight=1)
        async with asyncio.timeout(20):
            while path == "/half" and self.begun == begun:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return task

    async def kill_policy(self) -> None:
        """As a crash does."""
        await stop(self.policy)


@contextlib.asynccontextmanager
async def at_rest(live: Live) -> AsyncIterator[None]:
    """Around a case: whatever it left under way or stopped is over when the next one begins."""
    before = live.policy.pid
    yield
    print((live.directory / "policy.log").read_text()[-4000:])
    live.echo.finish.set()
    if live.policy.returncode is not None or live.policy.pid != before:
        await live.forget()
        await live.start_policy()
    await live.until(waiting=0, inflight=0)
    live.echo.finish.clear()


async def goes_at_once_and_gives_its_slot_back(live: Live, **headers: str) -> None:
    """A request that nobody is in the way of. The model server sees no header of ours."""
    answer = await live.post(json={"model": "m"}, headers=headers)
    assert answer.status == 200
    assert (answer.headers["x-policy-class"], answer.headers["x-queue-wait-ms"]) == ("P0", "0")
    assert not [name for name in answer.document["headers"] if name.lower().startswith("x-policy")]
    await live.until(waiting=0, inflight=0)


async def passes_ungoverned_while_all_is_taken(live: Live) -> None:
    """A path that is in no pool."""
    first = await live.busy()
    async with live.client.get(live.url_of("/v1/models")) as answer:
        assert answer.status == 200
        assert "x-policy-class" not in answer.headers
    live.echo.finish.set()
    assert (await first).status == 200
