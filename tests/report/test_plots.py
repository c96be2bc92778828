"""Plots: series that differ in more than colour, and infinite values."""

from __future__ import annotations

from skipring.report.plots import Axis, Point, Series, band_figure, dot_figure, line_figure


def test_series_differ_in_more_than_colour() -> None:
    names = [f"s{number}" for number in range(30)]
    series = [Series(name, (Point(8, 1, 1, 1, name),)) for name in names]
    drawn = line_figure(series, Axis("n", is_log=True), Axis("y")).data
    looks = {(it.line.color, it.line.dash, it.marker.symbol) for it in drawn}
    assert len(looks) == len(names)
    assert len({(it.line.dash, it.marker.symbol) for it in drawn}) > len(names) // 2


def test_infinite_values_are_omitted() -> None:
    inf = float("inf")
    points = (Point(8, 1, 1, inf, "a"), Point(16, inf, inf, inf, "b"))
    (line,) = line_figure([Series("s", points)], Axis("n"), Axis("y")).data
    assert list(line.x) == [8]
    assert list(line.error_y.array) == [0]


def test_dots_are_in_the_rows_of_their_names() -> None:
    one = Series("s", (Point(0, 5, 4, 6, ""), Point(1, 9, 9, 9, "")))
    drawn = dot_figure(["first", "second"], [one], Axis("rounds"))
    assert list(drawn.data[0].y) == [0, 1]
    assert list(drawn.layout.yaxis.ticktext) == ["first", "second"]


def test_steps_have_a_band_between_their_bounds() -> None:
    points = (Point(1, 100, 90, 100, ""), Point(2, 50, 30, 70, ""))
    low, high, middle = band_figure([Series("s", points)], Axis("t"), Axis("%"), shape="hv").data
    assert (list(low.y), list(high.y), list(middle.y)) == ([90, 30], [100, 70], [100, 50])
    assert high.fill == "tonexty"
