"""How fast and how dear publications get to everybody (``skipring bench sim --publications``)."""

from __future__ import annotations

from collections.abc import Iterator

from skipring.lab.bench.repair import repair_table, silence_table
from skipring.lab.bench.spreading import healing_table, spreading_table


def tables() -> Iterator[str]:
    """Yield the lines of all tables, in Markdown."""
    yield from repair_table()
    yield ""
    yield from spreading_table()
    yield ""
    yield from healing_table()
    yield ""
    yield from silence_table()
