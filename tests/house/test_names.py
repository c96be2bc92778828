"""Names: a public class name exists once in the tree, and modules are nouns."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

from tests.support.source_tree import modules

TWINS = {  # of the asynchronous classes
    "Connection": "blocking/connection.py",
    "KeyValue": "blocking/keyvalue.py",
    "Subscription": "blocking/connection.py",
    "TopicCharter": "blocking/charter.py",
}
NOUNS = {"framing", "ring", "testing"}


def duplicates(trees: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Return the modules of each public class name that exists more than once."""
    places: dict[str, list[str]] = {}
    for module, tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if TWINS.get(node.name) != module:
                places.setdefault(node.name, []).append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def gerunds(names: Iterable[str]) -> list[str]:
    """Return the modules whose name ends in -ing and is no noun."""
    return [
        name
        for name in names
        if (stem := PurePosixPath(name).stem).endswith("ing") and stem not in NOUNS
    ]


def test_public_class_name_exists_once() -> None:
    assert duplicates(modules()) == {}


def test_no_module_name_is_a_gerund() -> None:
    assert gerunds(name for name, _ in modules()) == []


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"a.py": "class Page: ...", "b.py": "class Page: ..."}, {"Page": ["a.py", "b.py"]}),
        ({"a.py": "class _Page: ...", "b.py": "class _Page: ..."}, {}),
        ({"a.py": "class Page: ...\ndef f():\n class Page: ..."}, {"Page": ["a.py", "a.py"]}),
        (
            {
                "api/c.py": "class Connection: ...",
                "blocking/connection.py": "class Connection: ...",
            },
            {},
        ),
        (
            {"api/c.py": "class Connection: ...", "net/c.py": "class Connection: ..."},
            {"Connection": ["api/c.py", "net/c.py"]},
        ),
    ],
)
def test_second_class_of_a_name_is_found(
    classes: dict[str, str], expected: dict[str, list[str]]
) -> None:
    assert duplicates((name, ast.parse(text)) for name, text in classes.items()) == expected


@pytest.mark.parametrize(
    ("name", "is_gerund"),
    [("node/keeping.py", True), ("wire/framing.py", False), ("api/blocking.py", True)],
)
def test_gerund_is_found(name: str, is_gerund: bool) -> None:
    assert bool(gerunds([name])) == is_gerund
