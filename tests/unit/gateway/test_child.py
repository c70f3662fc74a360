"""Children that die with us, and the rule for giving up on one that keeps failing."""

from __future__ import annotations

import sys

import pytest

from policy_server.gateway.child import Child, FailedStarts, GaveUpError


def test_pauses_grow_and_the_fifth_failed_start_is_the_last() -> None:
    failures = FailedStarts("Envoy")
    assert [failures.pause_s(1) for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    with pytest.raises(GaveUpError, match=r"Envoy failed to start 5 times in a row \(exit code 1"):
        failures.pause_s(1)


async def test_a_child_hears_us_and_answers() -> None:
    child = await Child.start([sys.executable, "-c", "print(input().upper())"], piped=True)
    child.tell("hello")
    assert await child.line() == "HELLO"
    assert await child.wait() == 0
    child.tell("nobody hears this")
    child.terminate()
    assert await child.line() == ""


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    script = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); input()"
    child = await Child.start([sys.executable, "-c", script], piped=True)
    assert await child.line() == "up"
    await child.stop(grace_s=0.05)
    assert child.exit_code == -9
