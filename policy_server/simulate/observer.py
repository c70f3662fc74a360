"""What the policy server gets to see of the engine, and when: no more than in production.

- Tokens are seen on observed answers only (the gate's own coin), in messages that carry all
  tokens since the last one; the access log tells the rest, `log_delay_s` after the end.
- A streamed answer's first byte is its headers, which the engine sends at once: no TTFT there.
- A lease under way is heard of every `HEARTBEAT_S` by the access log.
- Load reports, where there are any, are a scrape old.
"""

from __future__ import annotations

from dataclasses import dataclass

from policy_server.core.leases import HEARTBEAT_S
from policy_server.core.samples import Completion, Usage
from policy_server.simulate.backend import Answer
from policy_server.simulate.cluster import Cluster
from policy_server.simulate.gate import NODE, POOL, Gate
from policy_server.simulate.loop import Loop

HEADERS_S = 0.003
"""From a request's first byte to the engine's response headers, seconds."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Seconds. `report_every_s` None = the engine sends no load reports."""

    log_delay_s: float = 0.05
    token_every_s: float = 0.2
    report_every_s: float | None = None
    report_delay_s: float = 0.1


class Observer:
    """Feeds the gate with what it may see."""

    def __init__(self, loop: Loop, gate: Gate, cluster: Cluster, visibility: Visibility) -> None:
        self._loop, self.gate, self._cluster = loop, gate, cluster
        self._visibility = visibility
        self.log_delay_s = visibility.log_delay_s
        self._live: dict[str, tuple[Answer, int]] = {}  # observed streams → tokens told
        self._leased: dict[str, None] = {}
        self._ticking = False
        self.outlier = 1.0  # the next first token looks this many times faster
        loop.after(HEARTBEAT_S, self._beat)
        if visibility.report_every_s is not None:
            loop.after(visibility.report_every_s, self._scrape)

    def sent(self, uid: str) -> None:
        """A request went to the engine."""
        self._leased[uid] = None

    def began(self, answer: Answer) -> None:
        """The first token of an observed stream."""
        ttft_s = (self._loop.now - answer.sent_at) / self.outlier
        self.outlier = 1.0
        self.gate.first_token(answer.uid, answer.sent_at + ttft_s)
        self._live[answer.uid] = (answer, 1)
        if not self._ticking:
            self._ticking = True
            self._loop.after(self._visibility.token_every_s, self._tick)

    def ended(self, answer: Answer, observed: bool, whole: bool) -> None:
        """The stream closed; a whole answer carries its `usage`."""
        self._leased.pop(answer.uid, None)
        if not observed:
            return
        live = self._live.pop(answer.uid, None)
        if live is not None and whole:
            self._tell(answer, live[1], answer.output, self._loop.now)
        if whole:
            self.gate.usage(answer.uid, Usage(answer.prompt, answer.output))

    def completion(self, answer: Answer, streamed: bool, status: int, gone: bool) -> Completion:
        """The access log's entry for an answer that ended now."""
        taken = self._loop.now - answer.sent_at
        first = HEADERS_S if streamed else taken
        return Completion(
            status=status,
            client_gone=gone,
            first_byte_s=min(first, taken) if status and not (gone and not streamed) else None,
            last_byte_s=taken if status else None,
        )

    def _tell(self, answer: Answer, told: int, count: int, when: float) -> None:
        if count > told:
            self.gate.tokens(answer.uid, count - told, when)

    def _tick(self) -> None:
        for uid, (answer, told) in self._live.items():
            count, when = self._cluster.progress(answer)
            if count > told:
                self._tell(answer, told, count, when)
                self._live[uid] = (answer, count)
        self._ticking = bool(self._live)
        if self._ticking:
            self._loop.after(self._visibility.token_every_s, self._tick)

    def _beat(self) -> None:
        for uid in self._leased:
            self.gate.heartbeat(uid, NODE, self._loop.now)
        self._loop.after(HEARTBEAT_S, self._beat)

    def _scrape(self) -> None:
        reports = self._cluster.load()

        def deliver() -> None:
            for index, report in enumerate(reports):
                self.gate.load_report(POOL, f"engine-{index}", report, self._loop.now)

        self._loop.after(self._visibility.report_delay_s, deliver)
        self._loop.after(self._visibility.report_every_s or 1.0, self._scrape)
