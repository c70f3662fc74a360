"""Jobs over crashes of the policy server, as `make soak` does it with many more."""

from __future__ import annotations

from pathlib import Path

from tests.support.job_storm import Storm


async def test_accepted_jobs_survive_kill_minus_nine(tmp_path: Path) -> None:
    report = await Storm(jobs=300, kills=3, seed=7).run(tmp_path)
    assert report.wrong == []
    assert (report.accepted, len(report.kills)) == (300, 3)
