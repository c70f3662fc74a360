"""The benches of tenants and of returning clients run end to end, in miniature."""

from __future__ import annotations

from pathlib import Path

from tests.bench import returns, tenants


async def test_a_tenant_that_floods_waits_behind_itself(tmp_path: Path) -> None:
    plan = tenants.Tenants(slots=2, tokens=2, seconds=3.0, warmup_s=0.5, crowd=4)
    part = await tenants.run(plan, tmp_path, print)
    assert "B beside A at 10x" in {row[0] for row in part.rows}
    assert part.data["crowd"].keys() == {"t0", "t1", "t2", "t3"}  # type: ignore[attr-defined]
    assert all(row[2] for row in part.rows)


async def test_real_sdks_come_back_as_they_are_told(tmp_path: Path) -> None:
    plan = returns.Returns(slots=1, tokens=12, warm_s=1.0, seconds=3.0, calm_s=2.0)
    part = await returns.burst(plan, tmp_path, print)
    assert "retry-after 1-55" in {row[0] for row in part.rows}
    assert [row[0] for row in part.rows] == list(returns.ALL_TOLD)
    assert part.bars[2].holds, "no call may fail otherwise than by a refusal"


async def test_what_retries_cost_is_held_against_none(tmp_path: Path) -> None:
    plan = returns.Returns(slots=1, tokens=12, warm_s=1.0, seconds=6.0, calm_s=2.0)
    part = await returns.sustained(plan, tmp_path, print)
    assert [row[0] for row in part.rows] == [returns.OURS, returns.PATIENT]
    assert part.rows[1][6] == 1.0
