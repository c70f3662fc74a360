"""KEDA's external scaler: how many replicas the waiting work asks for.

    IsActive        anything waits or is under way: scale between 0 and 1
    StreamIsActive  the same, pushed: the first request out of silence is told at once, silence
                    when it has lasted for LOOK_S
    GetMetricSpec   what to aim at      GetMetrics   how it is now

A stream only ever tells the newest state, so a slow reader costs one pending message. There are at
most MAX_STREAMS: one more takes the place of the oldest, which a living KEDA opens again, so that
streams of pods that vanished can't lock anybody out. KEDA's newer StreamMetricSpec is answered
UNIMPLEMENTED, which it takes for "targets do not change while I run".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import grpc

from policy_server.adapters.keda_messages import (
    Ref,
    active_answer,
    read_metrics_request,
    read_ref,
    spec_answer,
    value_answer,
)
from policy_server.adapters.keda_trigger import Trigger, TriggerError, read_trigger
from policy_server.adapters.streams import Context, end
from policy_server.core.demand import Demand
from policy_server.core.events import Admitted, Event, Waiting

LOOK_S = 1.0
MAX_STREAMS = 64


class _Watcher:
    """One open stream. `told`: what it heard last, None = nothing yet."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.told: bool | None = None
        self.ended = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look again now."""
        self._woken.set()

    def end(self) -> None:
        """There is another one in its place, or nobody to ask any more."""
        self.ended = True
        self._woken.set()

    def asleep(self) -> None:
        """What happens from here on wakes it."""
        self._woken.clear()

    async def nap(self) -> None:
        """Until woken, LOOK_S at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._woken.wait()


class KedaScaler:
    """The `ExternalScaler` service. `pools` and `demand` tell of the running pools."""

    def __init__(
        self, pools: Callable[[], Sequence[str]], demand: Callable[[str], Demand | None]
    ) -> None:
        self._pools = pools
        self._demand = demand
        self._watchers: dict[_Watcher, None] = {}  # oldest first
        self._closing = False

    def on_event(self, event: Event, now: float) -> None:
        """Wake the streams that believe a pool to be asleep."""
        if self._watchers and isinstance(event, (Waiting, Admitted)):
            for watcher in self._watchers:
                if not watcher.told and watcher.pool == event.request.pool:
                    watcher.wake()

    def let_go(self) -> None:
        """End the streams; KEDA comes back to whoever serves next."""
        self._closing = True
        for watcher in self._watchers:
            watcher.end()

    async def is_active(self, raw: bytes, context: Context) -> bytes:
        """Whether there is anything to do."""
        trigger = await self._trigger(read_ref(raw), context)
        return active_answer((await self._now(trigger.pool, context)).active)

    async def stream_is_active(self, raw: bytes, context: Context) -> None:
        """The same from now on."""
        watcher = _Watcher((await self._trigger(read_ref(raw), context)).pool)
        if len(self._watchers) >= MAX_STREAMS:
            oldest = next(iter(self._watchers))
            del self._watchers[oldest]
            oldest.end()
        self._watchers[watcher] = None
        try:
            while not (watcher.ended or self._closing):
                watcher.asleep()
                active = (await self._now(watcher.pool, context)).active
                if active is not watcher.told:
                    watcher.told = active
                    await context.write(active_answer(active))
                await watcher.nap()
        finally:
            self._watchers.pop(watcher, None)

    async def get_metric_spec(self, raw: bytes, context: Context) -> bytes:
        """What to aim at."""
        trigger = await self._trigger(read_ref(raw), context)
        return spec_answer(trigger.name, trigger.target)

    async def get_metrics(self, raw: bytes, context: Context) -> bytes:
        """How it is now."""
        request = read_metrics_request(raw)
        ref, name = request if request is not None else (None, "")
        trigger = await self._trigger(ref, context)
        if name not in ("", trigger.name):
            code = grpc.StatusCode.NOT_FOUND
            await end(context, code, f"no metric {name!r}; this trigger has {trigger.name!r}")
        return value_answer(trigger.name, trigger.value(await self._now(trigger.pool, context)))

    async def _trigger(self, ref: Ref | None, context: Context) -> Trigger:
        if ref is None:
            await end(context, grpc.StatusCode.INVALID_ARGUMENT, "not a message of KEDA")
        try:
            return read_trigger(ref.metadata, self._pools())
        except TriggerError as error:
            wrong = grpc.StatusCode.INVALID_ARGUMENT
            code = grpc.StatusCode.NOT_FOUND if error.unknown_pool else wrong
            where = f" (ScaledObject {ref.namespace}/{ref.name})" if ref.name else ""
            await end(context, code, f"{error}{where}")

    async def _now(self, pool: str, context: Context) -> Demand:
        demand = self._demand(pool)
        if demand is None:
            await end(context, grpc.StatusCode.NOT_FOUND, f"pool {pool!r} is gone")
        return demand
