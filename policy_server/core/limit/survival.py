"""How long they wait, as told by those who waited and by those who still do.

    S(t) = Π (1 − 1/n_i)        over the waits t_i ≤ t that ended, n_i = how many waited that long

Kaplan & Meier (1958). Leaving out those who still wait makes a queue look short when it is worst;
counting them as if their wait were over makes one slow request look like a queue. Pure.
"""

from __future__ import annotations


def survived(samples: list[float], pending: list[float], share: float) -> list[float]:
    """What `share` of all waits exceed, as Kaplan and Meier estimate it; nothing of nothing.

    A pending wait tells only that it is longer than so far. While more than `share` of them are
    pending, what is known is their mean.
    """
    alive = 1.0
    for rank, wait in enumerate(samples):
        longer = len(samples) - rank + sum(other >= wait for other in pending)
        alive *= 1.0 - 1.0 / longer
        if alive <= share + 1e-9:
            return [wait]
    return [sum(pending) / len(pending)] if pending else samples[-1:]
