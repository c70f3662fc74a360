"""Charts: round scales, peaks kept, gaps left open."""

from __future__ import annotations

from math import inf, nan

import pytest

from policy_server.simulate.report.svg import Chart, Mark, Series, draw, nice_top, thin, x_step


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.03, 0.032), (1.0, 1.0), (61, 80), (101, 120), (999, 1000)]
)
def test_the_top_of_a_scale_is_round_and_above_the_values(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


@pytest.mark.parametrize("end", [1.0, 45.0, 60.0, 420.0, 3433.0, 86400.0])
def test_the_time_axis_has_a_handful_of_labels(end: float) -> None:
    assert 2 <= end / x_step(end) <= 6.001


def test_thinning_keeps_the_peaks() -> None:
    points = [(float(n), 100.0 if n == 777 else 1.0) for n in range(5000)]
    thinned = thin(points)
    assert len(thinned) <= 260
    assert max(value for _, value in thinned) == 100.0


def test_a_chart_says_what_it_shows_and_escapes_names() -> None:
    series = Series("<b>", "P0", [(0.0, 1.0), (1.0, nan), (2.0, 3.0), (3.0, 1.0)], area=True)
    text = draw(Chart("Wait & see", "seconds", [series], 3.0, marks=[Mark(2.9, "late")]))
    assert "Wait &amp; see" in text
    assert "&lt;b&gt;" in text
    assert "<b>Wait" in text
    assert text.count('class="line P0"') == 2  # the gap splits the line
    assert 'text-anchor="end"' in text


def test_an_endless_limit_is_not_drawn_off_the_chart() -> None:
    assert "inf" not in draw(Chart("Limit", "requests", [Series("l", "limit", [(0.0, inf)])], 9.0))
