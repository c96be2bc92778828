"""Effects: each host matches every effect class in exactly one function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import get_args

import pytest

from skipring.core.effects import Effect
from tests.support.source_tree import functions, modules

EFFECTS = frozenset(effect.__name__ for effect in get_args(Effect))
HOSTS = {
    "node/host.py": "NodeHost.dispatch",
    "node/supervisor_host.py": "SupervisorHost.dispatch",
    "sim/engine.py": "World._apply",
}
READERS = {
    ("node/publisher.py", "Publisher._stored"): "collects the batches of the own publications",
    ("sim/engine.py", "World.publish_and_crash"): "drops all effects but Send: the fault itself",
    ("lab/bench/reconcile.py", "_Party._timed"): "measures one machine without a host",
    ("core/topics.py", "SubscriberTopics.handle"): "removes a machine that has unsubscribed",
}


def matchers(tree: ast.Module) -> dict[str, set[str]]:
    """Return the effect classes that each function matches, by its qualified name."""
    found = {
        name: {effect for node in ast.walk(function) for effect in matched(node)}
        for name, function in functions(tree)
    }
    return {name: effects for name, effects in found.items() if effects}


def matched(node: ast.AST) -> Iterator[str]:
    """Yield the effect classes in a class pattern, an isinstance check or a comparison of types."""
    tested: list[ast.expr] = []
    match node:
        case ast.MatchClass(cls=pattern):
            tested = [pattern]
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
            tested = [classes]
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=others):
            tested = others
    for expression in tested:
        for part in ast.walk(expression):
            match part:
                case ast.Name(id=name) | ast.Attribute(attr=name) if name in EFFECTS:
                    yield name


@pytest.mark.parametrize("module", HOSTS)
def test_host_matches_every_effect_in_one_function(module: str) -> None:
    (tree,) = (tree for name, tree in modules() if name == module)
    assert matchers(tree)[HOSTS[module]] == EFFECTS


def test_effects_are_matched_in_the_hosts_only() -> None:
    found = {(name, function) for name, tree in modules() for function in matchers(tree)}
    assert found == HOSTS.items() | READERS.keys()


@pytest.mark.parametrize(
    ("body", "effects"),
    [
        (
            "match e:\n  case Send(): pass\n  case Store(offset=1) | Discard(): pass",
            "Send Store Discard",
        ),
        ("return isinstance(e, Deliver)", "Deliver"),
        ("return isinstance(e, (Deliver, int))", "Deliver"),
        ("return [each for each in e if isinstance(each, Store | int)]", "Store"),
        ("return type(e) is Send or type(e) in {effects.HeldBy}", "Send HeldBy"),
        ("return Send(e)", ""),
        ("return isinstance(e, Message)", ""),
    ],
)
def test_match_on_an_effect_is_detected(body: str, effects: str) -> None:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    found = matchers(ast.parse(f"class Host:\n  def second(self, e):\n{lines}"))
    assert found == ({"Host.second": {*effects.split()}} if effects else {})
