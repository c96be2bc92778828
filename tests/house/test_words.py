"""Word list: prose uses concrete subjects and one word for one thing.

The count of each directory is committed in word_counts.toml and may only fall. After rewriting
prose, lower it with ``SKIPRING_GOLDEN=rewrite pytest tests/house/test_words.py``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.ratchet import check
from tests.support.source_tree import ROOT

COUNTS = ROOT / "tests" / "house" / "word_counts.toml"
PLACES = ("src/skipring", "src/pyspark_skipring", "faults", "tests", "docs", "tools", "examples")
PLACES += ("scenarios",)

TEXTS = (
    ".md",
    ".txt",
    ".toml",
    ".yaml",
    ".yml",
    ".service",
    ".js",
    ".css",
    ".html",
    ".c",
    ".ipynb",
)

NAMED = "name the node, the supervisor or the caller"
SUGGESTIONS = {
    "whoever": NAMED,
    "somebody": NAMED,
    "nobody": f"{NAMED}, or write 'no member'",
    "anybody": f"{NAMED}, or write 'any member'",
    "everybody": "write 'all members'",
    "those who": "name them: members, peers, clients",
    "what came": "name it: the message, the publications",
    "one that": "repeat the noun",
    "so many": "state the number or the limit",
    "so much": "state the amount or the limit",
    "has come": "write 'has arrived' or 'was received'",
    "is told": "write 'receives' and what",
    "is said": "write 'is reported' or 'is stated'",
    "put aside": "write 'quarantine'",
    "worked out": "write 'computed'",
    "held for": "write 'considered' or 'kept for'",
    "held against": "write 'compared with'",
    "at hand": "write 'available'",
    "for ever": "write 'forever' or state the limit",
    "in force": "write 'active' or 'configured'",
}
_GAP = r"[\s#*>_]+"  # a phrase may continue on the next line of a comment or a quotation
LISTED = re.compile(
    r"\b(" + "|".join(word.replace(" ", _GAP) for word in SUGGESTIONS) + r")\b", re.IGNORECASE
)


class Hit(NamedTuple):
    """Listed word or phrase at one place."""

    line: int
    phrase: str

    @property
    def suggestion(self) -> str:
        """Return the replacement that the list proposes."""
        return SUGGESTIONS[self.phrase]


def hits_in(text: str, first_line: int = 1) -> Iterator[Hit]:
    """Yield the listed words of a text."""
    for match in LISTED.finditer(text):
        phrase = re.sub(_GAP, " ", match.group()).lower()
        yield Hit(first_line + text.count("\n", 0, match.start()), phrase)


def python_hits(source: str, *, all_strings: bool) -> Iterator[Hit]:
    """Yield the hits in comments, docstrings and test names, or in all strings of the product."""
    for line, text in comments(source):
        yield from hits_in(text, line)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)) if all_strings:
                yield from hits_in(text, node.lineno)
            case ast.Expr(value=ast.Constant(value=str(text))) if not all_strings:
                yield from hits_in(text, node.lineno)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test_"):
                    yield from hits_in(name.replace("_", " "), node.lineno)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each comment; adjacent lines are one comment."""
    start, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != start + len(lines):
                yield start, "\n".join(lines)
                lines = []
            if not lines:
                start = token.start[0]
            lines.append(token.string)
    if lines:
        yield start, "\n".join(lines)


def directory_of(path: Path) -> str:
    """Return the package of a source, or the top directory of another file."""
    parts = path.relative_to(ROOT).parts
    if parts[:2] == ("src", "skipring"):
        return parts[2] if len(parts) > 3 else "skipring"
    return parts[-2] if parts[0] == "src" else parts[0] if len(parts) > 1 else "root"


@cache
def tree_hits() -> dict[Path, list[Hit]]:
    """Return the hits of all files with prose."""
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        *(each for top in PLACES for each in (ROOT / top).rglob("*.*")),
    ]
    found = {}
    for path in sorted(files):
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            is_product = ROOT / "src" in path.parents
            if is_product or LISTED.search(text.replace("_", " ")):  # parsing takes long
                found[path] = list(python_hits(text, all_strings=is_product))
        elif path.suffix in TEXTS:
            found[path] = list(hits_in(path.read_text(encoding="utf-8")))
    return found


def test_count_of_listed_words_only_falls() -> None:
    counts: Counter[str] = Counter()
    for path, hits in tree_hits().items():
        counts[directory_of(path)] += len(hits)
    wrong = check(COUNTS, "hits", counts)
    changed = {line.partition(":")[0] for line in wrong}
    places = [
        f"{path.relative_to(ROOT)}:{hit.line}: {hit.phrase!r}: {hit.suggestion}"
        for path, hits in tree_hits().items()
        for hit in hits
        if directory_of(path) in changed
    ]
    assert wrong == [], "\n".join([*wrong, *places])


@pytest.mark.parametrize("phrase", SUGGESTIONS)
@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("x = 1\n# A comment with {} in it.", 2),
        ("def f() -> None:\n    '''Docstring with {}.'''", 2),
        ("_LOG.info('{}')", 1),
        ("raise InputError(f'{{x}}: {}')", 1),
        ("def test_member_{}_again() -> None: ...", 1),
    ],
)
def test_listed_word_is_found(form: str, line: int, phrase: str) -> None:
    source = form.format(phrase.replace(" ", "_") if "def test_" in form else phrase)
    assert list(python_hits(source, all_strings=True)) == [Hit(line, phrase)]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("Nobody\nknows ONE\nTHAT", [Hit(1, "nobody"), Hit(2, "one that")]),
        ("nobodys business; oneself that", []),
        ("> so\n> many", [Hit(1, "so many")]),
    ],
)
def test_markdown_is_matched_as_whole_words(text: str, hits: list[Hit]) -> None:
    assert list(hits_in(text)) == hits


def test_phrase_over_two_lines_of_a_comment_is_found() -> None:
    source = "x = 1  # for\ny = 2  # ever\n\n# so\n\n# much"
    assert list(python_hits(source, all_strings=True)) == [Hit(1, "for ever")]


def test_strings_in_tests_are_not_checked_as_prose() -> None:
    source = "'''Nobody.'''\nx = 'somebody'"
    assert list(python_hits(source, all_strings=False)) == [Hit(1, "nobody")]
