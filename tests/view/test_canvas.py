"""Canvas of the text drawings."""

import pytest

from skipring.view.canvas import Canvas, Dots, Point, Size


def drawn(path: list[Point], *, is_broken: bool = False) -> list[str]:
    canvas, dots = Canvas(Size(4, 3)), Dots()
    dots.draw(path, "red", is_broken=is_broken)
    dots.put_on(canvas)
    return [line.plain for line in canvas.lines()]


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ([(0.0, 1.0), (3.0, 1.0)], ["    ", "⠠⠤⠤⠤", "    "]),
        ([(1.0, 0.0), (1.0, 2.0)], [" ⢠  ", " ⢸  ", " ⠸  "]),
        ([(2.0, 1.0)], ["    ", "    ", "    "]),
        ([(0.0, 0.0), (0.0, 0.0)], ["⠠   ", "    ", "    "]),
        ([(-9.0, 1.0), (9.0, 1.0)], ["    ", "⠤⠤⠤⠤", "    "]),
    ],
    ids=["across", "down", "a point is no line", "one dot", "beyond the edges"],
)
def test_line_is_drawn_with_dots(path: list[Point], rows: list[str]) -> None:
    assert drawn(path) == rows


def test_broken_line_has_gaps() -> None:
    assert drawn([(0.0, 1.0), (3.0, 1.0)], is_broken=True) == ["    ", "⠠ ⠠ ", "    "]


def test_neighbours_of_the_same_style_are_one_span() -> None:
    canvas = Canvas(Size(6, 1))
    canvas.put((1, 0), "ab", "red")
    canvas.put((3, 0), "c", "blue")
    (line,) = canvas.lines()
    assert line.plain == " abc  "
    assert [(span.start, span.end, str(span.style)) for span in line.spans] == [
        (1, 3, "red"),
        (3, 4, "blue"),
    ]
