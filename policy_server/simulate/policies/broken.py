"""The product with one thing broken on purpose: controls for what only it can get wrong."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from policy_server.core.events import Admitted, Event
from policy_server.core.limit.base import WINDOW_S, Change, WindowSample
from policy_server.core.limit.baselines import Baselines, Key
from policy_server.core.limit.registry import make_limit
from policy_server.core.params import LimitParams, PoolParams
from policy_server.core.request import Request
from policy_server.core.samples import Completion, Usage
from policy_server.core.sampling import Rng
from policy_server.simulate.gate import POOL, CoreGate

MEMORY_S = 60.0
HEADROOM = 1.2
USUAL_TOKENS = 150
LEAK_PER_S = 2e-5


class LeakyGate(CoreGate):
    """Never hears of a client that hung up, and takes its request to be under way for ever."""

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """Only whole answers end a lease."""
        return [] if completion.client_gone else super().complete(uid, completion, now)

    def heartbeat(self, uid: str, node: str, now: float) -> None:
        """Every lease seems alive."""
        for lease in list(self.pool(POOL).leases):
            super().heartbeat(lease.request.uid, node, now)


class GullibleGate(CoreGate):
    """Takes a broken-off answer for a whole one, so that its short time becomes a sample."""

    def complete(self, uid: str, completion: Completion, now: float) -> list[Event]:
        """Everything is a success, of a usual length."""
        if completion.client_gone:
            self.usage(uid, Usage(USUAL_TOKENS, USUAL_TOKENS))
        taken = completion.last_byte_s
        whole = Completion(200, first_byte_s=completion.first_byte_s or taken, last_byte_s=taken)
        return super().complete(uid, whole, now)


class PureMinimum(Baselines):
    """Believes the best TTFT that it ever saw."""

    def ttft_residual(
        self, key: Key, x: float, now: float, allowed: float = 1.0, at_first: float = math.inf
    ) -> float:
        """Fall all the way to `x` at once."""
        residual = super().ttft_residual(key, x, now, allowed, at_first)
        for _ in range(40):
            if x >= (self.ttft(key) or 0.0):
                break
            super().ttft_residual(key, x, now, allowed, at_first)
        return residual


class LeakingBaselines(Baselines):
    """Leaks while nobody calls."""

    def ttft_residual(
        self, key: Key, x: float, now: float, allowed: float = 1.0, at_first: float = math.inf
    ) -> float:
        """Leak for all the time since the last sample, then as usual."""
        base = self._ttft.get(key)
        if base is not None:
            base.value *= 1.0 + LEAK_PER_S * max(0.0, now - base.at)
        return super().ttft_residual(key, x, now, allowed, at_first)


class LeakingGate(CoreGate):
    """A quiet night raises what it takes for unloaded."""

    def __init__(self, pools: Sequence[PoolParams], rng: Rng) -> None:
        super().__init__(pools, rng)
        self.pool(POOL).feedback.baselines = LeakingBaselines()


class BlindGrowth:
    """Grows whenever the limit was reached and nothing bad was measured."""

    def __init__(self, params: LimitParams) -> None:
        self._p, self._limit = params, make_limit(params)
        self._current = self._limit.current

    @property
    def current(self) -> float:
        """The limit."""
        return self._current

    @property
    def window_s(self) -> float:
        """The least length of a window, seconds."""
        return WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """No samples, no harm: a fifth more."""
        change = self._limit.on_window(sample)
        blind = sample.bound and not sample.events
        self._current = min(self._p.maximum, 1.2 * self._current) if blind else change.limit
        return Change(self._current, change.reason)

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds."""
        self._limit.reconfigure(params)

    def rescale(self, factor: float) -> None:
        """More or fewer replicas."""
        self._limit.rescale(factor)
        self._current = self._limit.current

    def state(self) -> dict[str, float]:
        """What Vegas knows."""
        return self._limit.state()

    def restore(self, state: dict[str, float]) -> None:
        """Give it back."""
        self._limit.restore(state)


class PoisonableGate(CoreGate):
    """One early first token spoils the baseline."""

    def __init__(self, pools: Sequence[PoolParams], rng: Rng) -> None:
        super().__init__(pools, rng)
        self.pool(POOL).feedback.baselines = PureMinimum()


class ShortMemory:
    """Vegas whose limit follows what was in flight within a minute, and forgets in a lull."""

    def __init__(self, params: LimitParams) -> None:
        self._limit = make_limit(params)
        self._peaks: deque[tuple[float, int]] = deque()
        self._cap = params.maximum

    @property
    def current(self) -> float:
        """The limit, at most a little above what was in flight."""
        return min(self._limit.current, self._cap)

    @property
    def window_s(self) -> float:
        """The least length of a window, seconds."""
        return WINDOW_S

    def on_window(self, sample: WindowSample) -> Change:
        """Ask Vegas, then cap."""
        change = self._limit.on_window(sample)
        self._peaks.append((sample.now, sample.peak_inflight))
        while self._peaks[0][0] < sample.now - MEMORY_S:
            self._peaks.popleft()
        self._cap = max(2.0, HEADROOM * max(peak for _, peak in self._peaks))
        return Change(self.current, change.reason)

    def reconfigure(self, params: LimitParams) -> None:
        """New bounds."""
        self._limit.reconfigure(params)

    def rescale(self, factor: float) -> None:
        """More or fewer replicas."""
        self._limit.rescale(factor)
        self._cap *= factor

    def state(self) -> dict[str, float]:
        """What Vegas knows."""
        return self._limit.state()

    def restore(self, state: dict[str, float]) -> None:
        """Give it back."""
        self._limit.restore(state)


def _sent_again(request: Request) -> bool:
    """Envoy sends a held request again after a crash: it arrives later than it first did."""
    return request.arrived > request.arrived_wall


class DeafGate(CoreGate):
    """Takes a request that is sent again for a duplicate, and never answers it."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """Only what is new."""
        return [] if _sent_again(request) else super().submit(request, now)


class DoublingGate(CoreGate):
    """Sends a request that is sent again to the engine twice."""

    def submit(self, request: Request, now: float) -> list[Event]:
        """At once, and once more."""
        events = super().submit(request, now)
        if _sent_again(request):
            go = Admitted(request, 0.0, queued=False, observe=False)
            events += [go, go]
        return events
