"""Committed counts that may only fall, in TOML files beside the tests of the house rules."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Counts: TypeAlias = Mapping[str, int]


def committed(path: Path, table: str) -> dict[str, int]:
    """Return the counts of one table of a file."""
    return dict(tomllib.loads(path.read_text(encoding="utf-8")).get(table, {}))


def differences(found: Counts, allowed: Counts, *, exact: bool = True) -> list[str]:
    """Return a line for each count that grew, and for each entry that is out of date.

    With ``exact`` an entry equals its count; otherwise it is an upper bound of a count that exists.
    """
    lines = []
    for name in sorted(found.keys() | allowed.keys()):
        count, limit = found.get(name, 0), allowed.get(name, 0)
        if count > limit:
            lines.append(f"{name}: {count}, allowed are {limit}")
        elif count < limit and (exact or not count):
            lines.append(f"{name}: {count}, lower the committed {limit}")
    return lines


def check(path: Path, table: str, found: Counts, *, exact: bool = True) -> list[str]:
    """Compare counts with a committed table; SKIPRING_GOLDEN=rewrite lowers the table first."""
    if os.environ.get("SKIPRING_GOLDEN") == "rewrite":
        _lower(path, table, found)
    return differences(found, committed(path, table), exact=exact)


def _lower(path: Path, table: str, found: Counts) -> None:
    text = path.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    limits = tables.get(table, {})
    tables[table] = {name: min(found.get(name, 0), limits[name]) for name in limits}
    header = [line for line in text.splitlines() if line.startswith("#")]
    path.write_text("\n".join([*header, *_rendered(tables)]) + "\n", encoding="utf-8")


def _rendered(tables: Mapping[str, Counts]) -> list[str]:
    lines = []
    for table, counts in tables.items():
        lines += ["", f"[{table}]"]
        lines += [f'"{name}" = {count}' for name, count in counts.items() if count]
    return lines
