"""The lab's page as a Markdown document with pictures, for the repository's docs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skipring.report.page import HtmlReport, Section
from skipring.report.tables import as_markdown

PICTURE_PREFIX: Final = "lab-"

_OPENING: Final = """\
# The paper and what was measured

Every theorem and lemma of the paper beside what the experiment lab measured, and what it costs.
This page is written by a command and not by hand:

```console
$ skipring lab run scenarios/lab-small.toml --out DIR
$ skipring lab report DIR --pictures docs/images --markdown docs/paper-results.md
```

The same matrix gives the same rows on any machine, and so the same page. What is known of each
statement, with the tests that show it, is in [paper-map.md](paper-map.md); numbers of decisions
lead to [decisions](decisions/README.md).
"""


def document(page: HtmlReport, pictures: Path | None, folder: Path) -> str:
    """The page in Markdown; pictures are linked as seen from ``folder``."""
    where = None if pictures is None else Path(os.path.relpath(pictures, folder)).as_posix()
    return "\n".join([*_lines(page, where)]).rstrip() + "\n"


def _lines(page: HtmlReport, pictures: str | None) -> Iterator[str]:
    yield _OPENING
    yield "## In short"
    yield f"\n{page.lead}\n"
    yield from (f"- {text}" for text in page.findings)
    for title, sections in page.parts:
        yield f"\n## {title}"
        for section in sections:
            yield from _section(section, pictures)
    yield "\n## How this page was made\n"
    yield from (f"- {what}: {value}" for what, value in page.made if "\n" not in value)


def _section(section: Section, pictures: str | None) -> Iterator[str]:
    yield f"\n### {section.title}\n\n{section.reading}\n"
    if section.figure is not None and pictures is not None:
        yield f"![{section.title}]({pictures}/{PICTURE_PREFIX}{section.key}.svg)\n"
    if section.table is not None:
        table = "\n".join(as_markdown(section.table))
        folded = f"<details><summary>The figures as a table</summary>\n\n{table}\n\n</details>\n"
        yield folded if section.fold_table else f"{table}\n"
    yield from (f"{note}\n" for note in section.notes)
