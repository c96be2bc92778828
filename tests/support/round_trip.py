"""Round trip of one variable of a machine: from the state into the attribute and back.

A pair of states differs in one field only. The machine that loads the second differs in the
attribute from the machine that loads the first (``load`` carries it). A machine of the first state
whose attribute is replaced by that of the second shows the field of the second (``state`` carries
it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, Final, TypeAlias

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from skipring.core.retention.member import TermsState
from skipring.core.state import (
    DrainState,
    ExchangeState,
    ScrubState,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SupervisorState,
)
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.world.adversaries import ADVERSARIES
from tests.support.batches import batch
from tests.support.machines import TOPIC, loaded_supervisor, subscriber
from tests.support.publications import QUARTER

State: TypeAlias = SubscriberState | SupervisorState
Path: TypeAlias = tuple[str | tuple[object], ...]  # of fields; a key of a dict is in a tuple

NODES: Final = 6
SEEDS: Final = 4
OTHERS_MAX: Final = 4


@cache
def drawn_states() -> tuple[State, ...]:
    """Return the states of all machines in the worlds of all adversaries."""
    worlds = [
        adversary.build(NODES, Random(seed))
        for adversary in ADVERSARIES.values()
        for seed in range(SEEDS)
    ]
    states: list[State] = []
    for world in worlds:
        states += [world.supervisor, *world.subscribers.values()]
    return tuple(states)


def carries(kind: str, attribute: str, field: str) -> bool:
    """Return True if a field of the state is carried from and to an attribute of a class."""
    return any(_is_carried(kind, attribute, *pair) for pair in pairs(field))


def _is_carried(kind: str, attribute: str, path: Path, one: State, two: State) -> bool:
    first, second = machine(one), machine(two)
    if shown(first) != one or shown(second) != two:
        return False  # such a state changes when it is loaded
    for part, other in zip(parts(first, kind), parts(second, kind), strict=False):
        if getattr(part, attribute) != getattr(other, attribute):
            setattr(part, attribute, deepcopy(getattr(other, attribute)))
            return bool(_at(shown(first), path) == _at(two, path))
    return False


def heals(kind: str, attribute: str, value: object, *, ticks: int) -> bool:
    """Return True if an attribute equals that of a twin some ticks after it was overwritten.

    An iterable stands for an iterator of the attribute. The machine is that of a healthy subscriber
    with publications.
    """
    publications = tuple(batch(b"x", first=seq, topic=TOPIC) for seq in range(40))
    right, wrong = (subscriber(replace(QUARTER, publications=publications)) for _ in range(2))
    for host in (right, wrong):
        host.tick()
    for part in parts(wrong.machine, kind):
        is_iterator = isinstance(value, tuple) and attribute == "_unread"
        setattr(part, attribute, iter(value) if is_iterator else deepcopy(value))
    for host in (right, wrong):
        host.tick(ticks)
        host.publish(b"news")
        host.tick()
    pairs = zip(parts(right.machine, kind), parts(wrong.machine, kind), strict=True)
    return all(getattr(one, attribute) == getattr(other, attribute) for one, other in pairs)


def machine(state: State) -> Subscriber | Supervisor:
    """Return a machine that has loaded a state."""
    if isinstance(state, SupervisorState):
        return loaded_supervisor(state).machine
    return subscriber(state).machine


def shown(made: Subscriber | Supervisor) -> State:
    """Return all variables of a machine as a value."""
    if isinstance(made, Supervisor):
        return replace(made.state(), memory=made.memory() or SupervisorMemory())
    return replace(made.state(), memory=made.memory() or SubscriberMemory())


def parts(root: object, kind: str) -> list[Any]:
    """Return the parts of a machine that are of a class, in the order of its attributes."""
    found, seen, waiting = [], set(), [root]
    while waiting:
        part = waiting.pop(0)
        if id(part) in seen or not type(part).__module__.startswith("skipring.core."):
            continue
        seen.add(id(part))
        if type(part).__name__ == kind:
            found.append(part)
        for name in _names(part):
            value = getattr(part, name)
            waiting += value.values() if isinstance(value, dict) else _items(value)
    return found


def _names(part: object) -> Iterable[str]:
    return getattr(part, "__struct_fields__", None) or getattr(type(part), "__slots__", ())


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else [value]


# -- pairs of states ---------------------------------------------------------------------------


def pairs(field: str) -> Iterator[tuple[Path, State, State]]:
    """Return pairs of states that differ in one field, "<class>.<field>", and its path."""
    kind, _, name = field.partition(".")
    others: list[object] = []
    for state in drawn_states():
        for path, struct in structs(state):
            if type(struct).__name__ != kind:
                continue
            bare, value = _bare(state, path), getattr(struct, name)
            for other in (*_defaults(type(struct), name), *others[:OTHERS_MAX]):
                if other != value:
                    one = _replaced(bare, path, name, other)
                    yield (*path, name), one, _replaced(bare, path, name, value)
            if value not in others:
                others.append(value)


def _defaults(kind: type[Struct], name: str) -> Iterator[object]:
    for field in struct_fields(kind):
        if field.name == name and field.default is not NODEFAULT:
            yield field.default
        elif field.name == name and field.default_factory is not NODEFAULT:
            yield field.default_factory()


def structs(value: object, path: Path = ()) -> Iterator[tuple[Path, Struct]]:
    """Return the structs in a state, with their paths."""
    if isinstance(value, Struct):
        yield path, value
        for name in value.__struct_fields__:
            yield from structs(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from structs(each, (*path, (key,)))


def _bare(state: State, path: Path) -> State:
    """Return the state with the memory of a new machine, except for a dict on the path."""
    made: State
    if isinstance(state, SupervisorState):
        made = replace(state, memory=SupervisorMemory())
    elif "scrub" in path:
        made = replace(state, memory=SubscriberMemory(scrub=ScrubState()), hashes={})
    elif "drain" in path:  # a machine that is not leaving has no Drain
        made = replace(state, memory=SubscriberMemory(drain=DrainState(ticks=1)), hashes={})
    else:
        made = replace(state, memory=SubscriberMemory(), hashes={})
    if "terms" in path:
        made = replace(made, memory=SubscriberMemory(terms=TermsState()), hashes={})
    elif "exchange" in path:
        made = replace(made, memory=SubscriberMemory(exchange=ExchangeState()), hashes={})
    for place, step in enumerate(path):
        if isinstance(step, tuple):
            *inner, last = path[:place]
            return _replaced(made, tuple(inner), str(last), _at(state, path[:place]))
    return made


def _at(value: Any, path: Path) -> Any:  # noqa: ANN401  (depends on the path)
    for step in path:
        value = value[step[0]] if isinstance(step, tuple) else getattr(value, step)
    return value


def _replaced(state: Any, path: Path, name: str, value: object) -> Any:  # noqa: ANN401
    """Return a copy of a state with another value in a field of the struct at a path."""
    if not path:
        return replace(state, **{name: value})
    step, *rest = path
    if isinstance(step, tuple):
        return state | {step[0]: _replaced(state[step[0]], tuple(rest), name, value)}
    return replace(state, **{step: _replaced(getattr(state, step), tuple(rest), name, value)})
