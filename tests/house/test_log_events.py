"""Log events: stable snake_case names, each with a row in the table of docs/operations.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGE = ROOT / "docs" / "operations.md"
LEVELS = {"debug", "info", "warning", "error"}
RATE_LIMITED = {"warn", "log_drop"}


def logged_events() -> set[str]:
    """Return the events that the modules with a logger of skipring write."""
    return {event for path in SOURCES for event in events_of(path.read_text(encoding="utf-8"))}


def events_of(source: str) -> Iterator[str]:
    if not re.search(r"\blogger\(|\blog_drop\(", source):
        return  # modules for Spark write sentences to the logger of the driver
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=owner, attr=name),
                args=[ast.Constant(value=str(event)), *_],
            ) if name in RATE_LIMITED or (name in LEVELS and is_log(owner)):
                yield event


def is_log(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id == "_LOG"


def table() -> dict[str, list[str]]:
    """Return level, meaning and action of each event in the table."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Logs\n")[2]
    head = "| event | level | meaning | action |\n|---|---|---|---|\n"
    lines = text.partition(head)[2].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {event.strip("`"): rest for event, *rest in rows}


def test_every_log_event_is_snake_case() -> None:
    assert [each for each in logged_events() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", each)] == []


def test_every_log_event_has_a_row_and_every_row_an_event() -> None:
    assert table().keys() == logged_events()


def test_every_row_states_level_meaning_and_action() -> None:
    assert [event for event, cells in table().items() if len(cells) != 3 or not all(cells)] == []


def test_event_with_spaces_is_detected() -> None:
    assert list(events_of("_LOG = logger('x')\n_LOG.info('no member', topic=1)")) == ["no member"]
