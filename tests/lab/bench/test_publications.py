"""What ``skipring bench sim --publications`` prints."""

import pytest

from skipring.lab.bench import publications as bench


def test_the_tables_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("repair_table", "spreading_table", "healing_table", "silence_table"):
        monkeypatch.setattr(bench, name, lambda name=name: iter([name]))
    assert [line for line in bench.tables() if line] == [
        "repair_table",
        "spreading_table",
        "healing_table",
        "silence_table",
    ]
