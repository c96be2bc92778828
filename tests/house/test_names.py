"""Names: a public class name exists once in the tree, modules are nouns, and words are precise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
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
VAGUE = {  # with their forms
    *("settle", "settles", "settled", "settling", "take", "takes", "taken", "took", "taking"),
    *("note", "notes", "noted", "look", "looks", "looked", "looking", "tell", "tells", "told"),
    *("say", "says", "said", "saying", "hear", "hears", "heard", "hearing", "telling"),
    *("give", "gives", "given", "gave", "giving", "util", "utils", "helper", "helpers"),
    *("manager", "managers", "base", "bases"),
}
VAGUE_PAIRS = {("go", "on"), ("goes", "on"), ("let", "go"), ("lets", "go"), ("work", "off")}
GLOSSARY = {  # names of the glossary, and of a message that contains "taken"
    "on_heard",
    "take_evictions",
    "NameTaken",
    "_on_name_taken",
}


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


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case, split at underscores and capital letters."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def is_vague(name: str) -> bool:
    """Return True if a name contains a word that has several meanings here."""
    words = words_of(name)
    has_vague_word = not VAGUE.isdisjoint(words) or not VAGUE_PAIRS.isdisjoint(pairwise(words))
    return has_vague_word and name not in GLOSSARY


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the functions and classes of a module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return (node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_no_name_contains_a_vague_word() -> None:
    found = [
        f"{module}: {name}"
        for module, tree in modules()
        for name in (*PurePosixPath(module).with_suffix("").parts, *defined(tree))
        if is_vague(name)
    ]
    assert found == []


def test_each_name_of_the_glossary_exists() -> None:
    assert {name for _, tree in modules() for name in defined(tree)} >= GLOSSARY


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wait_settled", True),
        ("_look", True),
        ("PeerManager", True),
        ("go_on", True),
        ("on_heard", False),
        ("baseline", False),
        ("notebook", False),
    ],
)
def test_vague_name_is_found(name: str, expected: bool) -> None:
    assert is_vague(name) == expected


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
