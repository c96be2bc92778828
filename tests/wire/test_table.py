"""The table of messages in docs/wire.md equals the generated table."""

from pathlib import Path

from skipring.wire.rpc import WIRE_TYPES
from tools.wire_table import table_lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"


def test_table_in_the_docs_equals_the_generated_one() -> None:
    lines = table_lines()
    written = PAGE.read_text(encoding="utf-8").splitlines()
    start = written.index(lines[0])
    end = next(at for at in range(start, len(written)) if not written[at].startswith("|"))
    assert written[start:end] == lines, (
        "docs/wire.md is stale: replace its table by what `python tools/wire_table.py` prints"
    )


def test_table_has_a_described_row_for_each_message() -> None:
    rows = [line.split(" | ") for line in table_lines()[2:]]
    assert [row[1] for row in rows] == [f"`{kind.__name__}`" for kind in WIRE_TYPES]
    assert all(row[-1].endswith(". |") for row in rows)
