"""Log of the last changes of a node's place in the ring, with the rule behind each.

It inspects only events that can change the place; publications cannot. The sentences are those of
the paper's procedures and of the decision records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from skipring.core.effects import Effect
from skipring.core.events import (
    Event,
    Received,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import SUPERVISOR, NodeId, Peer, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.observability.clock import time_us
from skipring.wire.rpc import ChangeEntry

KEPT: Final = 64  # Our guess: a join, a crash nearby and a repair are about thirty changes.

# Messages and events that can change a place; after others the place is not compared.
_CAUSES: Final = frozenset(
    {
        SetConfiguration,
        CheckLabel,
        Introduce,
        IntroduceShortcut,
        RemoveConnections,
        SubscribeRequested,
        UnsubscribeRequested,
        Tick,
    }
)


class NodeChange(Enum):
    """What has happened to a variable."""

    GAINED = "it was empty"
    LOST = "it is empty now"
    REPLACED = "it names another node, or another label of ours"
    RELABELLED = "it names the same node under another label"
    OPENED = "a shortcut that nobody holds yet"
    CLOSED = "a shortcut that is not wanted any more"
    VOID = "it led to ourselves or to the supervisor"


class _Place(Struct, frozen=True, gc=False):
    """The variables of a machine that the ring is made of."""

    member: bool
    label: Label | None
    edges: tuple[Peer | None, Peer | None, Peer | None]
    shortcuts: dict[Label, NodeId | None]


_NOWHERE: Final = _Place(False, None, (None, None, None), {})
_EDGES: Final = ("left", "right", "ring")


class _Found(Struct, frozen=True, gc=False):
    """One variable that is not what it was."""

    kind: str
    change: NodeChange
    field: str
    before: str
    after: str


# -- the journals of a node ------------------------------------------------------------------


class ChangeLog:
    """Machines of a node, with the last changes of each; the host sends events through it."""

    def __init__(self, topics: SubscriberTopics, clock_us: Callable[[], int] = time_us) -> None:
        self._topics = topics
        self._clock_us = clock_us
        self._entries: dict[TopicId, deque[ChangeEntry]] = {}
        self.ticks = 0

    def entries(self, topic: TopicId) -> tuple[ChangeEntry, ...]:
        """Return the last changes in a topic, the oldest first."""
        return tuple(self._entries.get(topic, ()))

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """Run one event of a topic; record the changes of the node's place."""
        kind = type(event.message) if isinstance(event, Received) else type(event)
        if kind not in _CAUSES:
            return self._topics.handle(topic, event)
        before = self._place(topic)
        effects = self._topics.handle(topic, event)
        sender = event.sender if isinstance(event, Received) else None
        self._record(topic, before, kind.__name__, sender)
        return effects

    def on_tick(self) -> None:
        """Count ticks, which changes are dated by."""
        self.ticks += 1

    def _place(self, topic: TopicId) -> _Place:
        machine = self._topics.machine(topic)
        return _place_of(machine) if machine is not None else _NOWHERE

    def _record(self, topic: TopicId, before: _Place, cause: str, sender: NodeId | None) -> None:
        machine = self._topics.machine(topic)
        if machine is None:
            self._entries.pop(topic, None)  # we have left
            return
        after = _place_of(machine)
        if after == before:
            return
        kept = self._entries.setdefault(topic, deque(maxlen=KEPT))
        for found in _differences(before, after, machine.node):
            kept.append(
                ChangeEntry(
                    tick=self.ticks,
                    time=self._clock_us(),
                    cause=cause,
                    sender=sender,
                    field=found.field,
                    before=found.before,
                    after=found.after,
                    why=explanation(cause, found.kind, found.change),
                )
            )


def _place_of(machine: Subscriber) -> _Place:
    edges = (machine.left, machine.right, machine.ring)
    return _Place(machine.member, machine.label, edges, dict(machine.shortcuts))


# -- differences -----------------------------------------------------------------------------


def _differences(before: _Place, after: _Place, me: NodeId) -> Iterator[_Found]:
    """Each variable that has changed, and how."""
    if before.member != after.member:
        change = NodeChange.GAINED if after.member else NodeChange.LOST
        yield _Found("member", change, "member", _yes(before.member), _yes(after.member))
    if before.label != after.label:
        change = _kind_of_change(before.label, after.label)
        yield _Found("label", change, "label", _text(before.label), _text(after.label))
    for name, old, new in zip(_EDGES, before.edges, after.edges, strict=True):
        if old != new:
            kind = "ring" if name == "ring" else "neighbour"
            yield _Found(kind, _change_of_edge(old, new, me), name, _text(old), _text(new))
    for label in sorted(before.shortcuts.keys() | after.shortcuts.keys()):
        found = _change_of_shortcut(label, before.shortcuts, after.shortcuts, me)
        if found is not None:
            yield found


def _kind_of_change(old: object, new: object) -> NodeChange:
    if old is None:
        return NodeChange.GAINED
    return NodeChange.LOST if new is None else NodeChange.REPLACED


def _change_of_edge(old: Peer | None, new: Peer | None, me: NodeId) -> NodeChange:
    if old is not None and old.node in (me, SUPERVISOR):
        return NodeChange.VOID
    if old is not None and new is not None and old.node == new.node:
        return NodeChange.RELABELLED
    return _kind_of_change(old, new)


def _change_of_shortcut(
    label: Label,
    before: Mapping[Label, NodeId | None],
    after: Mapping[Label, NodeId | None],
    me: NodeId,
) -> _Found | None:
    old, new = before.get(label), after.get(label)
    if label not in before and new is None:
        change = NodeChange.OPENED
    elif label not in after:
        change = NodeChange.CLOSED
    elif old == new:
        return None
    elif old in (me, SUPERVISOR):
        change = NodeChange.VOID
    else:
        change = _kind_of_change(old, new)
    texts = (_slot(label, before), _slot(label, after))
    return _Found("shortcut", change, f"shortcut {label}", *texts)


def _slot(label: Label, slots: Mapping[Label, NodeId | None]) -> str:
    if label not in slots:
        return "none"
    return slots[label] or "empty"


def _text(value: Label | Peer | None) -> str:
    if isinstance(value, Peer):
        return f"({value.label}, {value.node})"
    return str(value) if value is not None else "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# -- why -------------------------------------------------------------------------------------

_OVERWRITTEN: Final = (
    "the supervisor's configuration overwrites what we believed (SetData, Algorithm 4; B13)"
)
_NEARER: Final = "a nearer neighbour spoke for itself (Linearize, Algorithm 1; R2)"
_MOVED: Final = "the neighbour says that it has another label now (Check, Algorithm 1)"
_AWAY: Final = "the neighbour's new label is not next to ours any more (Linearize; R10)"
_CLOSES: Final = "the other end of the line spoke for itself (Introduce with CYC, Algorithm 2)"
_FARTHER: Final = "one that stands farther out takes the wrap edge (Introduce, Algorithm 2)"
_CORRECTED: Final = "the other end of the line says that it has another label now (B4)"
_OF_THE_LINE: Final = "the wrap edge turned out to belong to the line (Introduce, Algorithm 2; B4)"
_VOID: Final = "a reference to ourselves or to the supervisor leads nowhere (B2)"
_REMOVED: Final = "the node has no label any more, so nobody refers to it (RemoveConnections; B7)"
_WRONG_SIDE: Final = "a neighbour stood on the wrong side and is put right (BuildListTimeout)"
_FORGOTTEN: Final = "who leaves and has no label forgets everybody (B8)"

_FIRST_HAND: Final[Mapping[tuple[str, NodeChange], str]] = {
    ("neighbour", NodeChange.GAINED): _NEARER,
    ("neighbour", NodeChange.REPLACED): _NEARER,
    ("neighbour", NodeChange.RELABELLED): _MOVED,
    ("neighbour", NodeChange.LOST): _AWAY,
    ("ring", NodeChange.GAINED): _CLOSES,
    ("ring", NodeChange.REPLACED): _FARTHER,
    ("ring", NodeChange.RELABELLED): _CORRECTED,
    ("ring", NodeChange.LOST): _OF_THE_LINE,
}

# By the type of the event, the variable and what happened to it.
WHY: Final[Mapping[tuple[str, str, NodeChange], str]] = {
    ("SubscribeRequested", "member", NodeChange.GAINED): (
        "the application wants to be in the topic (section 4.1)"
    ),
    ("UnsubscribeRequested", "member", NodeChange.LOST): (
        "the application wants to leave; the supervisor is asked for permission (S2)"
    ),
    ("SetConfiguration", "label", NodeChange.GAINED): (
        "the supervisor has given us our label (SetData, Algorithm 4)"
    ),
    ("SetConfiguration", "label", NodeChange.REPLACED): (
        "the supervisor has given us another label (SetData, Algorithm 4)"
    ),
    ("SetConfiguration", "label", NodeChange.LOST): (
        "the supervisor does not know us, so we subscribe again (S2)"
    ),
    **{
        ("SetConfiguration", kind, change): _OVERWRITTEN
        for kind in ("neighbour", "ring")
        for change in (
            NodeChange.GAINED,
            NodeChange.LOST,
            NodeChange.REPLACED,
            NodeChange.RELABELLED,
        )
    },
    **{
        (cause, kind, change): why
        for cause in ("CheckLabel", "Introduce")
        for (kind, change), why in _FIRST_HAND.items()
    },
    ("IntroduceShortcut", "shortcut", NodeChange.GAINED): (
        "a neighbour of our level said who holds the label (IntroduceShortcut, Algorithm 4)"
    ),
    ("IntroduceShortcut", "shortcut", NodeChange.REPLACED): (
        "the newest holder is taken for right, the old one is asked who it is "
        "(IntroduceShortcut, Algorithm 4; R1)"
    ),
    ("RemoveConnections", "neighbour", NodeChange.LOST): _REMOVED,
    ("RemoveConnections", "ring", NodeChange.LOST): _REMOVED,
    ("RemoveConnections", "shortcut", NodeChange.LOST): (
        "the node has no label any more; the place stays open for the next (B9)"
    ),
    ("Tick", "shortcut", NodeChange.OPENED): (
        "the chain from our ring neighbours leads over this label (section 3.2.2)"
    ),
    ("Tick", "shortcut", NodeChange.CLOSED): (
        "no chain from our ring neighbours leads over this label any more; "
        "its holder is asked who it is (section 3.2.2; C5, R1)"
    ),
    **{
        ("Tick", "neighbour", change): _WRONG_SIDE
        for change in (
            NodeChange.GAINED,
            NodeChange.LOST,
            NodeChange.REPLACED,
            NodeChange.RELABELLED,
        )
    },
    ("Tick", "ring", NodeChange.LOST): (
        "we are no end of the line, so the wrap edge is not ours (BuildRingTimeout; R13)"
    ),
    **{
        ("UnsubscribeRequested", kind, change): _FORGOTTEN
        for kind in ("neighbour", "ring", "shortcut")
        for change in (NodeChange.LOST, NodeChange.CLOSED)
    },
}
UNEXPLAINED: Final = "no rule of ours does this: please report it"


def explanation(cause: str, kind: str, change: NodeChange) -> str:
    """Which rule explains a change, in one sentence with its citation."""
    if change is NodeChange.VOID:
        return _VOID
    return WHY.get((cause, kind, change), UNEXPLAINED)
