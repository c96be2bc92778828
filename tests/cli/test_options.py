"""Options that several commands share."""

from __future__ import annotations

import click
import pytest

from skipring.cli.options import Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("1m", 60), ("2 h", 7200), ("1d", 86_400), ("1.5", 1.5)],
)
def test_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert Duration(0.1, 86_400).convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 fortnights", "nan", "0s", "2d", "9" * 99])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="duration"):
        Duration(0.1, 86_400).convert(text, None, None)
