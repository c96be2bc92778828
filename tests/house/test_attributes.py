"""Attributes: only its own object assigns an attribute, and a property assigns nothing.

Syntax trees have no types, so attributes are told apart by name. An assignment from outside is
allowed for fields of records of the same module, and for another instance of the own class.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tests.support.ratchet import check
from tests.support.source_tree import ROOT, Function, modules

COUNTS = ROOT / "tests" / "house" / "attribute_counts.toml"
PROPERTIES = {"property", "cached_property"}
RECORDS = {"Struct", "dataclass", "NamedTuple"}
MUTATORS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft"),
    *("remove", "setdefault", "update"),
}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def classes_in(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def methods_of(owner: ast.ClassDef) -> list[Function]:
    return [node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that are assigned or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node


def fields_of(owner: ast.ClassDef) -> set[str]:
    """Return the attributes that a class declares or assigns itself."""
    declared = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return declared | {node.attr for node in stored(owner) if is_self(node.value)}


def is_record(owner: ast.ClassDef) -> bool:
    """Return True for a Struct or dataclass, and for a private class with a constructor only."""
    if owner.name.startswith("_") and {each.name for each in methods_of(owner)} == {"__init__"}:
        return True
    parts = [*owner.bases, *owner.decorator_list]
    names = {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}
    return bool(names & RECORDS)


def outside_assignments(tree: ast.Module, known: Iterable[str]) -> list[tuple[int, str]]:
    """Return line and text of each assignment to an attribute of another object."""
    records = {name for each in classes_in(tree) if is_record(each) for name in fields_of(each)}
    own = {
        node
        for each in classes_in(tree)
        for node in stored(each)
        if node.attr in fields_of(each) and isinstance(node.value, ast.Name)
    }
    return sorted(
        (node.lineno, ast.unparse(node))
        for node in stored(tree)
        if not is_self(node.value) and node.attr in set(known) - records and node not in own
    )


def working_properties(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and name of each property that assigns, or calls a method that assigns."""
    found = []
    for owner in classes_in(tree):
        methods = {method.name: method for method in methods_of(owner)}
        working = {name for name, method in methods.items() if assigns(method)}
        while more := {
            name for name in methods.keys() - working if used_by(methods[name]) & working
        }:
            working |= more
        found += [
            (methods[name].lineno, f"{owner.name}.{name}")
            for name in working
            if any(
                isinstance(each, ast.Name) and each.id in PROPERTIES
                for each in methods[name].decorator_list
            )
        ]
    return sorted(found)


def assigns(method: Function) -> bool:
    """Return True if a method changes an attribute of its object, or a collection in one."""
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()) if is_self(owner):
                return True
            case ast.Subscript(value=ast.Attribute(value=owner), ctx=ast.Store() | ast.Del()) if (
                is_self(owner)
            ):
                return True
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner), attr=name)) if (
                is_self(owner) and name in MUTATORS
            ):
                return True
    return False


def used_by(method: Function) -> set[str]:
    """Return the attributes of its object that a method reads or calls."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and is_self(node.value)
    }


@cache
def known_attributes() -> frozenset[str]:
    """Return the attributes of all classes of skipring."""
    return frozenset(
        name for _, tree in modules() for owner in classes_in(tree) for name in fields_of(owner)
    )


def places(table: str) -> list[tuple[str, int, str]]:
    """Return module, line and text of each violation of one rule."""
    found = []
    for module, tree in modules():
        if table == "outside_assignments":
            lines = outside_assignments(tree, known_attributes())
        else:
            lines = working_properties(tree)
        found += [(module, line, text) for line, text in lines]
    return found


@pytest.mark.parametrize("table", ["outside_assignments", "working_properties"])
def test_count_of_changes_outside_of_methods_only_falls(table: str) -> None:
    found = places(table)
    wrong = check(COUNTS, table, Counter(module.partition("/")[0] for module, _, _ in found))
    changed = {line.partition(":")[0] for line in wrong}
    listed = [
        f"{module}:{line}: {text}"
        for module, line, text in found
        if module.partition("/")[0] in changed
    ]
    assert wrong == [], "\n".join([*wrong, *listed])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("driver.links = 1", ["driver.links"]),
        ("self.driver.links = 1", ["self.driver.links"]),
        ("a, driver.links = 1, 2", ["driver.links"]),
        ("driver.links += 1", ["driver.links"]),
        ("del driver.links", ["driver.links"]),
        ("self.links = 1", []),
        ("context.check_hostname = 1", []),  # of another library
        ("class Watch(Struct):\n  links: int\nwatch.links = 1", []),
        ("class _Log:\n  def __init__(self): self.links = 0\nlog.links = 1", []),
        ("class Host:\n  links: int\nhost.links = 1", ["host.links"]),
        (
            "class Trie:\n  def copy(self):\n    self.links = 1\n    other.links = self.links",
            [],
        ),
    ],
)
def test_assignment_from_outside_is_found(source: str, expected: list[str]) -> None:
    found = outside_assignments(ast.parse(source), {"links"})
    assert [text for _, text in found] == expected


@pytest.mark.parametrize(
    ("body", "is_working"),
    [
        ("self._x = 1", True),
        ("self._x[1] = 1", True),
        ("self._x.append(1)", True),
        ("return self._first()", True),
        ("return self._third.count", True),
        ("return self._x[1]", False),
        ("x = [1]\n    x.append(2)", False),
        ("return self._pure()", False),
    ],
)
def test_property_that_assigns_is_found(body: str, is_working: bool) -> None:
    source = f"""
class Replica:
  @property
  def trie(self):
    {body}
  def _first(self): return self._second()
  def _second(self): self._x += 1
  @property
  def _third(self): del self._x
  def _pure(self): return self._x
"""
    found = [text for _, text in working_properties(ast.parse(source))]
    assert ("Replica.trie" in found) == is_working
