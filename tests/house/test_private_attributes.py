"""Private attributes: tests use only those of their own objects; counts may only fall.

Tests that corrupt private state are counted by file, the others by directory.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.support.ratchet import check, committed
from tests.support.source_tree import ROOT

COUNTS = ROOT / "tests" / "house" / "private_counts.toml"
OWN = {"self", "cls"}
PRIVATE = re.compile(r"(?<!self)(?<!cls)\._[a-z]")
# Files whose tests corrupt the private state of a machine and observe that it heals.
CORRUPTING = {
    "core/test_broadcast.py",
    *("core/test_name_registry.py", "core/test_publications.py", "core/test_replica.py"),
    *("core/test_roster.py", "core/test_subscriber.py", "core/test_supervisor.py"),
    *("core/test_topics.py", "core/test_trie.py"),
    *("core/retention/test_departed.py", "core/retention/test_member.py"),
}


def private_accesses(tree: ast.AST) -> list[tuple[int, str]]:
    """Return line and text of each access to a private attribute of another object."""
    return sorted(
        (node.lineno, ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("_")  # such as __class__, and _repr_svg_ of notebooks
        and node.attr not in {"_replace", "_exit"}  # public: of a NamedTuple, and of os
        and not (isinstance(node.value, ast.Name) and node.value.id in OWN)
    )


@cache
def places() -> list[tuple[str, int, str]]:
    """Return file, line and text of each access in the tests."""
    top, found = ROOT / "tests", []
    for path in sorted(top.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if PRIVATE.search(source):  # parsing takes long
            name = path.relative_to(top).as_posix()
            found += [(name, line, text) for line, text in private_accesses(ast.parse(source))]
    return found


def key_of(name: str) -> str:
    """Return the entry that counts the accesses of a file."""
    return name if name in CORRUPTING else PurePosixPath(name).parts[0]


@pytest.mark.parametrize("table", ["observed", "corrupted"])
def test_count_of_private_accesses_only_falls(table: str) -> None:
    found = [each for each in places() if (each[0] in CORRUPTING) == (table == "corrupted")]
    wrong = check(COUNTS, table, Counter(key_of(name) for name, _, _ in found))
    changed = {line.partition(":")[0] for line in wrong}
    listed = [f"{name}:{line}: {text}" for name, line, text in found if key_of(name) in changed]
    assert wrong == [], "\n".join([*wrong, *listed])


def test_each_corrupting_file_has_a_count() -> None:
    assert set(committed(COUNTS, "corrupted")) == CORRUPTING


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("node._links", ["node._links"]),
        ("node._links = 1", ["node._links"]),
        ("self.node._links", ["self.node._links"]),
        ("node._links._peers", ["node._links", "node._links._peers"]),
        ("self._links", []),
        ("cls._links", []),
        ("node.links", []),
        ("node.__class__", []),
    ],
)
def test_private_access_is_found(source: str, expected: list[str]) -> None:
    assert [text for _, text in private_accesses(ast.parse(source))] == expected
