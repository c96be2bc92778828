"""Tables of the metrics in docs/operations.md, generated from the table of the code.

``python tools/metrics_table.py`` prints them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from skipring.observability.metrics import OF_ALL, OF_NODES, OF_SUPERVISORS, Metric


def metrics_page() -> str:
    """Return the tables of the docs, in Markdown."""
    parts = {
        "Of nodes and supervisors": OF_ALL,
        "Of nodes": OF_NODES,
        "Of supervisors": OF_SUPERVISORS,
    }
    return "\n".join(line for title, part in parts.items() for line in _table(title, part))


def _table(title: str, metrics: Iterable[Metric]) -> Iterator[str]:
    yield from (
        f"### {title}",
        "",
        "| metric | type | meaning | check when |",
        "|---|---|---|---|",
    )
    for each in metrics:
        labels = f" by {', '.join(each.labels)}" if each.labels else ""
        yield f"| `{each.name}` | {each.kind}{labels} | {each.meaning} | {each.alarm} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
