"""Tables in Markdown, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def header(first: str, others: Sequence[str]) -> Iterator[str]:
    """The first two lines of a table: text on the left, figures on the right."""
    yield row(first, others)
    yield row("---", ["---:"] * len(others))


def row(first: str, others: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join([first, *others])} |"
