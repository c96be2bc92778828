"""The table of messages in docs/wire.md is the one that the code gives."""

from pathlib import Path

from skipring.wire.rpc import WIRE_TYPES
from skipring.wire.table import table_lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"


def test_the_table_in_the_docs_is_what_the_code_says() -> None:
    lines = table_lines()
    written = PAGE.read_text(encoding="utf-8").splitlines()
    start = written.index(lines[0])
    end = next(at for at in range(start, len(written)) if not written[at].startswith("|"))
    assert written[start:end] == lines, (
        "docs/wire.md is stale: replace its table by what `python -m skipring.wire.table` prints"
    )


def test_the_table_has_a_line_for_each_message_that_says_what_it_is_for() -> None:
    rows = [line.split(" | ") for line in table_lines()[2:]]
    assert [row[1] for row in rows] == [f"`{kind.__name__}`" for kind in WIRE_TYPES]
    assert all(row[-1].endswith(". |") for row in rows)
