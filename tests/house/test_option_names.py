"""Texts of the library name parameters; only the command line names its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "skipring"
OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMAND_LINES = ("cli/", "lab/")  # they read options, or start processes with them
ALLOWED = {
    "spark/session/java.py": "options of a JVM",
}


def texts_with_options(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string, docstrings included, that names an option."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)) if OPTION.search(text):
                yield node.lineno, text


def test_no_text_below_the_command_line_names_an_option() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(COMMAND_LINES) or name in ALLOWED:
            continue
        lines = texts_with_options(path.read_text(encoding="utf-8"))
        found += [f"{name}:{line}: {text}" for line, text in lines]
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise InputError("give --data")', 1),
        ('raise InputError(f"{x}: give --data")', 1),
        ('"""A docstring that names --data."""', 1),
        ('text = "a dash -- and a-b--c"', 0),
    ],
)
def test_option_is_found_in_texts_and_docstrings(source: str, count: int) -> None:
    assert len(list(texts_with_options(source))) == count
