"""Several replicas behind Envoy's least-request balancer (the better of two random picks)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from policy_server.core.samples import LoadReport
from policy_server.simulate.backend import Answer, Backend


class Replica(Backend, Protocol):
    """A backend whose active requests can be counted."""

    @property
    def active(self) -> int:
        """Answers in progress or queued."""
        ...


class Cluster:
    """Sends each answer to one live replica."""

    def __init__(
        self, replicas: Sequence[Replica], rng: Random, models: Sequence[str] = ()
    ) -> None:
        self.replicas = list(replicas)
        self._models = models
        self._rng = rng
        self._up = list(range(len(replicas)))

    def submit(self, answer: Answer, now: float) -> bool:
        """Send it on; False = no replica that serves its model is up."""
        able = [i for i in self._up if not self._models or self._models[i] == answer.model]
        if not able:
            return False
        answer.replica = self._pick(able)
        answer.sent_at = now
        self.replicas[answer.replica].submit(answer)
        return True

    def cancel(self, answer: Answer) -> None:
        """Its client is gone."""
        self.replicas[answer.replica].cancel(answer)

    def progress(self, answer: Answer) -> tuple[int, float]:
        """Tokens out so far, and when the last of them came."""
        return self.replicas[answer.replica].progress(answer)

    def load(self) -> list[LoadReport]:
        """The report of every live replica."""
        return [self.replicas[index].load() for index in self._up]

    def kill(self, index: int) -> None:
        """Take a replica away; what it worked on fails."""
        self._up = [up for up in self._up if up != index]
        self.replicas[index].kill()

    def retire(self, index: int) -> None:
        """No new work for a replica; what it has, it finishes."""
        self._up = [up for up in self._up if up != index]

    def revive(self, index: int) -> None:
        """Bring it back, empty."""
        if index not in self._up:
            self._up = sorted([*self._up, index])

    @property
    def up(self) -> int:
        """Live replicas."""
        return len(self._up)

    def _pick(self, able: Sequence[int]) -> int:
        if len(able) == 1:
            return able[0]
        one, two = self._rng.choice(able), self._rng.choice(able)
        return one if self.replicas[one].active <= self.replicas[two].active else two
