"""What a pool has learned, as flat numbers for the journal, and back.

limit.*   the algorithm's own state        base.*   baselines        drain   μ̂ per second
lengths   mean output tokens
replicas  back ends that the limit stands for
"""

from __future__ import annotations

from collections.abc import Mapping

from policy_server.core.pool import Pool

FIRST_SEATS = 16.0  # used at once after a restart: what a cold start begins with
MAX_REPLICAS = 100_000.0
MAX_LEARNED = 1e9
"""Above any seats, seconds, tokens or rates: a damaged number, whose sums would become infinite."""


def learned(pool: Pool, now: float) -> dict[str, float]:
    """Limit, baselines and drain rate as flat numbers.

    Before the first request that is what was restored: each restart begins at half of it, and
    restarts in a quiet night must not halve it again and again.
    """
    if pool.feedback.window is None and pool.feedback.restored:
        return dict(pool.feedback.restored)
    state = {f"limit.{k}": v for k, v in pool.limit.state().items()}
    state.update({f"base.{k}": v for k, v in pool.feedback.baselines.state().items()})
    rate = pool.predictor.drain.per_s(pool.limit.current, now)
    if rate is not None:
        state["drain"] = rate
    state["lengths"] = pool.weights.lengths.mean
    if pool.usable.ramp.learned_with:
        state["replicas"] = float(pool.usable.ramp.learned_with)
    return state


def restore_learned(pool: Pool, saved: Mapping[str, float], now: float) -> None:
    """Take back what `learned` gave; numbers that are none are left out."""
    pool.feedback.restored = state = {k: v for k, v in saved.items() if abs(v) <= MAX_LEARNED}
    limit = {k[6:]: v for k, v in state.items() if k.startswith("limit.")}
    if limit:
        pool.limit.restore(limit)
        pool.usable.slew.begin_at(min(FIRST_SEATS, pool.limit.current), now)
    pool.feedback.baselines.restore(
        ((k[5:], v) for k, v in state.items() if k.startswith("base.")), now
    )
    pool.weights.lengths.mean = max(0.0, state.get("lengths", pool.weights.lengths.mean))
    if state.get("replicas", 0.0) >= 1.0:
        pool.usable.ramp.learned_with = int(min(state["replicas"], MAX_REPLICAS))
    pool.predictor.drain.assume(state.get("drain", 0.0))
    pool.refusals.retries.forgive(now)  # whoever saved this has told clients to come back
