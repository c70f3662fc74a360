"""Ordinary HTTP or embeddings: k servers with one queue, lognormal service times, no tokens."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from random import Random

from policy_server.core.samples import LoadReport
from policy_server.simulate.backend import Answer, Sink
from policy_server.simulate.loop import Loop


@dataclass(frozen=True, slots=True)
class PlainParams:
    """`servers` work at once; one takes `service_s` on average, `sigma` of its logarithm."""

    servers: int = 8
    service_s: float = 0.05
    sigma: float = 0.5

    def __post_init__(self) -> None:
        if self.servers < 1 or self.service_s <= 0 or self.sigma < 0:
            raise ValueError("service: servers ≥ 1, service_s > 0, sigma ≥ 0")


class PlainService:
    """One replica. Work in progress keeps its end when the speed changes; a stall delays it."""

    def __init__(self, params: PlainParams, loop: Loop, sink: Sink, rng: Random) -> None:
        self.params = params
        self._loop, self._sink, self._rng = loop, sink, rng
        self._servers, self._speed, self._stalled_until = params.servers, 1.0, 0.0
        self._waiting: deque[Answer] = deque()
        self._working: dict[Answer, None] = {}  # a set's order would differ from run to run

    @property
    def active(self) -> int:
        """Answers in progress or queued."""
        return len(self._waiting) + len(self._working)

    def submit(self, answer: Answer) -> None:
        """Start it when a server is free."""
        self._waiting.append(answer)
        self._fill()

    def cancel(self, answer: Answer) -> None:
        """Free its server at once."""
        if answer.done:
            return
        answer.done = True
        if answer in self._working:
            self._working.pop(answer, None)
            self._fill()
        else:
            self._waiting.remove(answer)

    def progress(self, answer: Answer) -> tuple[int, float]:
        """Everything comes in one piece at the end."""
        return (answer.output if answer.done else 0), self._loop.now

    def load(self) -> LoadReport:
        """Queue and servers in use."""
        return LoadReport(waiting=float(len(self._waiting)), running=float(len(self._working)))

    def set_speed(self, factor: float) -> None:
        """What starts from now on takes `factor` times its normal time."""
        self._speed = factor

    def set_slots(self, slots: int) -> None:
        """More servers start at once, fewer as work ends."""
        self._servers = max(1, slots)
        self._fill()

    def stall(self, until: float) -> None:
        """Nothing ends before then."""
        self._stalled_until = until

    def kill(self) -> None:
        """Fail everything in progress."""
        lost = [*self._working, *self._waiting]
        self._working.clear()
        self._waiting.clear()
        for answer in lost:
            answer.done = True
            self._sink.failed(answer)

    def _fill(self) -> None:
        while self._waiting and len(self._working) < self._servers:
            answer = self._waiting.popleft()
            self._working[answer] = None
            self._loop.after(self._service_s(), partial(self._end, answer))

    def _service_s(self) -> float:
        sigma = self.params.sigma
        mean = self.params.service_s * self._speed
        return mean * math.exp(self._rng.gauss(-sigma * sigma / 2, sigma))

    def _end(self, answer: Answer) -> None:
        if answer.done:
            return
        if self._loop.now < self._stalled_until:
            self._loop.at(self._stalled_until, partial(self._end, answer))
            return
        self._working.pop(answer, None)
        answer.done = True
        self._fill()
        answer.first_token_at = self._loop.now
        self._sink.first_token(answer)
        self._sink.finished(answer)
