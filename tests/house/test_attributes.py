"""Attributes: only its own object assigns an attribute, and a property does no work.

A property that works assigns an attribute, or reads the entries of a log or a trie.

Syntax trees have no types, so attributes are told apart by name. An assignment from outside is
allowed for fields of records of the same module, and for another instance of the own class. The
class of a part is known from its annotation, or from the call that makes it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import TypeAlias, TypeGuard

import pytest

from tests.support.ratchet import check
from tests.support.source_tree import ROOT, Function, modules

COUNTS = ROOT / "tests" / "house" / "attribute_counts.toml"
PROPERTIES = {"property", "cached_property"}
Method: TypeAlias = tuple[str, str]  # class and name
RECORDS = {"Struct", "dataclass", "NamedTuple"}
MUTATORS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft"),
    *("remove", "setdefault", "update"),
}
# Methods that read as many entries as a log or a trie has.
READERS = {"batches", "build", "entries", "read", "read_many", "read_range", "records"}


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


@cache
def classes_in(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def methods_of(owner: ast.ClassDef) -> list[Function]:
    return [node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that are assigned or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node


@cache
def fields_of(owner: ast.ClassDef) -> frozenset[str]:
    """Return the attributes that a class declares or assigns itself."""
    declared = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return frozenset(declared | {node.attr for node in stored(owner) if is_self(node.value)})


def is_record(owner: ast.ClassDef) -> bool:
    """Return True for a Struct or dataclass, and for a private class with a constructor only."""
    if owner.name.startswith("_") and {each.name for each in methods_of(owner)} == {"__init__"}:
        return True
    parts = [*owner.bases, *owner.decorator_list]
    names = {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}
    return bool(names & RECORDS)


def outside_assignments(tree: ast.Module, known: Set[str]) -> list[tuple[int, str]]:
    """Return line and text of each assignment to an attribute of another object."""
    fields = [(each, fields_of(each)) for each in classes_in(tree)]
    watched = known.difference(*(names for each, names in fields if is_record(each)))
    own = {
        node
        for each, names in fields
        for node in stored(each)
        if node.attr in names and isinstance(node.value, ast.Name)
    }
    return sorted(
        (node.lineno, ast.unparse(node))
        for node in stored(tree)
        if not is_self(node.value) and node.attr in watched and node not in own
    )


def methods_in(trees: Iterable[ast.AST]) -> dict[Method, Function]:
    """Return the methods of all classes by class and name; names of classes are unique."""
    owners = [owner for tree in trees for owner in classes_in(tree)]
    return {(owner.name, method.name): method for owner in owners for method in methods_of(owner)}


def working_methods(trees: Iterable[ast.AST]) -> set[Method]:
    """Return the methods that assign, or use such a method of their class or of a part."""
    trees = list(trees)
    methods = methods_in(trees)
    names = {name for name, _ in methods}
    parts = {each.name: parts_of(each, names) for tree in trees for each in classes_in(tree)}
    uses = {key: used_by(method, key[0], parts[key[0]]) for key, method in methods.items()}
    working = {key for key, method in methods.items() if assigns(method)}
    while more := {key for key in uses.keys() - working if uses[key] & working}:
        working |= more
    return working


def parts_of(owner: ast.ClassDef, classes: set[str]) -> dict[str, set[str]]:
    """Return the classes of the attributes of a class, as annotations and calls name them."""
    found: dict[str, set[str]] = {}
    for method in methods_of(owner):
        arguments = {each.arg: each.annotation for each in ast.walk(method.args) if is_typed(each)}
        for node in ast.walk(method):
            match node:
                case ast.AnnAssign(target=ast.Attribute(value=holder, attr=name), annotation=kind):
                    sources = [kind]
                case ast.Assign(targets=[ast.Attribute(value=holder, attr=name)], value=value):
                    sources = [value.func if isinstance(value, ast.Call) else value]
                    sources += [arguments[value.id]] if is_argument(value, arguments) else []
                case _:
                    continue
            if is_self(holder):
                named = {each.id for part in sources for each in ast.walk(part) if is_name(each)}
                found.setdefault(name, set()).update(named & classes)
    return found


def is_typed(node: ast.AST) -> TypeGuard[ast.arg]:
    return isinstance(node, ast.arg) and node.annotation is not None


def is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def is_argument(value: ast.expr, arguments: Mapping[str, object]) -> TypeGuard[ast.Name]:
    return isinstance(value, ast.Name) and value.id in arguments


def working_properties(tree: ast.Module, working: Set[Method]) -> list[tuple[int, str]]:
    """Return line and name of each property that assigns, or uses a method that assigns."""
    return sorted(
        (method.lineno, ".".join(key))
        for key, method in methods_in([tree]).items()
        if (key in working or reads_entries(method))
        and any(is_name(each) and each.id in PROPERTIES for each in method.decorator_list)
    )


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


def reads_entries(method: Function) -> bool:
    """Return True if a method calls a method that reads entries of a log or a trie."""
    calls = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
    return any(isinstance(each, ast.Attribute) and each.attr in READERS for each in calls)


def used_by(method: Function, owner: str, parts: Mapping[str, set[str]]) -> set[Method]:
    """Return the methods of its object, and of parts of it, that a method reads or calls."""
    found: set[Method] = set()
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                found.add((owner, name))
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=part), attr=name
            ):
                found |= {(kind, name) for kind in parts.get(part, ())}
    return found


@cache
def known_attributes() -> frozenset[str]:
    """Return the attributes of all classes of skipring."""
    return frozenset(
        name for _, tree in modules() for owner in classes_in(tree) for name in fields_of(owner)
    )


@cache
def all_working() -> frozenset[Method]:
    """Return the methods of skipring that change an object.

    The classes of ``blocking`` have the names of others, and their queries call the loop's thread.
    """
    return frozenset(
        working_methods(tree for name, tree in modules() if not name.startswith("blocking/"))
    )


def places(table: str) -> list[tuple[str, int, str]]:
    """Return module, line and text of each violation of one rule."""
    found = []
    for module, tree in modules():
        if table == "outside_assignments":
            lines = outside_assignments(tree, known_attributes())
        else:
            lines = working_properties(tree, all_working())
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
        ("class Trie:\n  def copy(self):\n    self.links = 1\n    other.links = self.links", []),
    ],
)
def test_assignment_from_outside_is_found(source: str, expected: list[str]) -> None:
    found = outside_assignments(ast.parse(source), frozenset({"links"}))
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
        ("return self._trie.find()", False),
        ("return self._trie.index()", True),
        ("return self._made.index()", True),
        ("return self._known.size", True),
        ("return self._other.index()", False),
        ("return sum(1 for _ in self._log.entries())", True),
        ("return len(self._log)", False),
    ],
)
def test_property_that_assigns_is_found(body: str, is_working: bool) -> None:
    source = f"""
class Trie:
  def index(self): self._x = 1
  def find(self): return self._x
  @property
  def size(self): return self.index()
class Replica:
  def __init__(self, trie: Trie, known: Trie | None, other: Log):
    self._trie, self._x = None, 1
    self._trie = trie
    self._known = known
    self._other = other
    self._made = Trie()
  @property
  def trie(self):
    {body}
  def _first(self): return self._second()
  def _second(self): self._x += 1
  @property
  def _third(self): del self._x
  def _pure(self): return self._x
"""
    tree = ast.parse(source)
    found = [text for _, text in working_properties(tree, working_methods([tree]))]
    assert ("Replica.trie" in found) == is_working
