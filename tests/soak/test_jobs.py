"""Ten thousand jobs and twenty kills."""

from __future__ import annotations

from pathlib import Path

from tests.support.job_storm import Storm


async def test_no_job_is_lost_run_twice_for_nothing_or_answered_wrong(tmp_path: Path) -> None:
    report = await Storm(jobs=10_000, kills=20, seed=1).run(tmp_path)
    print(
        f"{report.accepted} jobs, {len(report.kills)} kills, {report.again} ran again, "
        f"{report.refused} tries refused meanwhile, {report.seconds:.0f} s"
    )
    assert report.wrong == []
    assert report.accepted == 10_000
    assert len(report.kills) == 20
