"""Log of the last changes of a node's place in the ring, with the rule behind each.

It inspects only events that can change the place; publications cannot. Each sentence cites a
procedure of the paper or a decision record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from skipring.core.effects import Effect
from skipring.core.events import (
    Event,
    Overwritten,
    Received,
    RoutineReceived,
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
from skipring.core.peers import SUPERVISOR, NodeId, Peer, TopicId, as_text
from skipring.core.ring_messages import RingPlace
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.observability.clock import time_us
from skipring.wire.rpc import ChangeEntry

KEPT: Final = 64  # Guess: a join, a crash nearby and a repair are about thirty changes.

# Messages and events that can change a place; the host does not record others.
CAUSES: Final = frozenset(
    {
        SetConfiguration,
        CheckLabel,
        Introduce,
        IntroduceShortcut,
        RemoveConnections,
        SubscribeRequested,
        UnsubscribeRequested,
        RoutineReceived,
        Overwritten,
        Tick,
    }
)


class NodeChange(Enum):
    """Kind of change of a variable."""

    GAINED = "it was empty"
    LOST = "it is empty now"
    REPLACED = "it has another node, or the node itself another label"
    RELABELLED = "it has the same node under another label"
    OPENED = "a new shortcut without a known holder"
    CLOSED = "a shortcut that is no longer wanted"
    VOID = "it referred to the node itself or to the supervisor"


class _MemberPlace(Struct, frozen=True, gc=False):
    """Variables of a machine that define its place in the ring."""

    member: bool
    variables: RingPlace

    @property
    def label(self) -> Label | None:
        return self.variables[0].label if self.variables[0] is not None else None

    @property
    def edges(self) -> tuple[Peer | None, ...]:
        return self.variables[1:4]

    @property
    def shortcuts(self) -> dict[Label, NodeId | None]:
        return dict(zip(*self.variables[4:], strict=True))


_NOWHERE: Final = _MemberPlace(False, (None, None, None, None, (), ()))
_EDGES: Final = ("left", "right", "ring")


class _Found(Struct, frozen=True, gc=False):
    """Change of one variable."""

    kind: str
    change: NodeChange
    field: str
    before: str
    after: str


# -- record ----------------------------------------------------------------------------------


class ChangeLog:
    """Last changes of the place of each machine of a node."""

    def __init__(self, topics: SubscriberTopics, clock_us: Callable[[], int] = time_us) -> None:
        self._topics = topics
        self._clock_us = clock_us
        self._entries: dict[TopicId, list[ChangeEntry]] = {}
        self._places: dict[TopicId, _MemberPlace] = {}  # after the last event of CAUSES
        self.ticks = 0

    def entries(self, topic: TopicId) -> tuple[ChangeEntry, ...]:
        """Return the last changes in a topic, the oldest first."""
        return tuple(self._entries.get(topic, ()))

    def handle(self, topic: TopicId, event: Event) -> list[Effect]:
        """Run one event of a topic, one of CAUSES; record the changes of the node's place."""
        if type(event) is Overwritten:  # a fault, not a change by a procedure
            self._places.pop(topic, None)
            return self._topics.handle(topic, event)
        before = self._places.get(topic)
        if before is None:
            machine = self._topics.machine(topic)
            before = _place_of(machine) if machine is not None else _NOWHERE
            self._places[topic] = before
        effects = self._topics.handle(topic, event)
        machine = self._topics.machine(topic)
        if machine is None:  # the node has left
            self._entries.pop(topic, None)
            self._places.pop(topic, None)
        elif machine.wants is not before.member or machine.place() != before.variables:
            after = self._places[topic] = _place_of(machine)
            self._record(topic, _differences(before, after, machine.node), event)
        return effects

    def on_tick(self) -> None:
        """Count one tick; each entry has the number of its tick."""
        self.ticks += 1

    def _record(self, topic: TopicId, changes: Iterator[_Found], event: Event) -> None:
        sender = event.sender if isinstance(event, Received | RoutineReceived) else None
        kept = self._entries.setdefault(topic, [])
        for found in changes:
            cause = _cause_of(event, found.kind)
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
        del kept[:-KEPT]


def _cause_of(event: Event, changed: str) -> str:
    """Return the name of the message or event that changed a variable of this kind."""
    if isinstance(event, RoutineReceived):  # no other routine message changes these variables
        return (IntroduceShortcut if changed == "shortcut" else CheckLabel).__name__
    return type(event.message if isinstance(event, Received) else event).__name__


def _place_of(machine: Subscriber) -> _MemberPlace:
    return _MemberPlace(machine.wants, machine.place())


# -- differences -----------------------------------------------------------------------------


def _differences(before: _MemberPlace, after: _MemberPlace, me: NodeId) -> Iterator[_Found]:
    """Yield each variable that has changed, with the kind of change."""
    if before.member != after.member:
        change = NodeChange.GAINED if after.member else NodeChange.LOST
        yield _Found("member", change, "member", _yes(before.member), _yes(after.member))
    if before.label != after.label:
        change = _kind_of_change(before.label, after.label)
        yield _Found("label", change, "label", as_text(before.label), as_text(after.label))
    for name, old, new in zip(_EDGES, before.edges, after.edges, strict=True):
        if old != new:
            kind = "ring" if name == "ring" else "neighbour"
            yield _Found(kind, _change_of_edge(old, new, me), name, as_text(old), as_text(new))
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


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# -- why -------------------------------------------------------------------------------------

_OVERWRITTEN: Final = (
    "the supervisor's configuration replaces the node's own values (SetData, Algorithm 4; B13)"
)
_NEARER: Final = "a nearer neighbour introduced itself (Linearize, Algorithm 1; R2)"
_MOVED: Final = "the neighbour reports that it has another label now (Check, Algorithm 1)"
_AWAY: Final = "the neighbour's new label is no longer adjacent to the node's (Linearize; R10)"
_CLOSES: Final = "the other end of the line introduced itself (Introduce with CYC, Algorithm 2)"
_FARTHER: Final = "a node farther out replaces the end of the wrap edge (Introduce, Algorithm 2)"
_CORRECTED: Final = "the other end of the line reports that it has another label now (B4)"
_OF_THE_LINE: Final = "the wrap edge is an edge of the line (Introduce, Algorithm 2; B4)"
_VOID: Final = "a reference to the node itself or to the supervisor is removed (B2)"
_REMOVED: Final = "the other node has no label, so no node refers to it (RemoveConnections; B7)"
_WRONG_SIDE: Final = "a neighbour on the wrong side is moved to the other one (BuildListTimeout)"
_FORGOTTEN: Final = "a leaving node without a label drops all its references (B8)"

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

# Key: type of the event, kind of the variable, kind of the change.
WHY: Final[Mapping[tuple[str, str, NodeChange], str]] = {
    ("SubscribeRequested", "member", NodeChange.GAINED): (
        "the application subscribes to the topic (section 4.1)"
    ),
    ("UnsubscribeRequested", "member", NodeChange.LOST): (
        "the application unsubscribes; the node asks the supervisor for permission (S2)"
    ),
    ("SetConfiguration", "label", NodeChange.GAINED): (
        "the supervisor assigned a label (SetData, Algorithm 4)"
    ),
    ("SetConfiguration", "label", NodeChange.REPLACED): (
        "the supervisor assigned another label (SetData, Algorithm 4)"
    ),
    ("SetConfiguration", "label", NodeChange.LOST): (
        "the supervisor has no record of the node, which has to subscribe again (S2)"
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
        "a neighbour of the same level introduced the holder (IntroduceShortcut, Algorithm 4)"
    ),
    ("IntroduceShortcut", "shortcut", NodeChange.REPLACED): (
        "the newest holder replaces the old one, which is asked for its label "
        "(IntroduceShortcut, Algorithm 4; R1)"
    ),
    ("RemoveConnections", "neighbour", NodeChange.LOST): _REMOVED,
    ("RemoveConnections", "ring", NodeChange.LOST): _REMOVED,
    ("RemoveConnections", "shortcut", NodeChange.LOST): (
        "the other node no longer has a label; the shortcut waits for another holder (B9)"
    ),
    ("Tick", "shortcut", NodeChange.OPENED): (
        "the chain from the ring neighbours contains this label (section 3.2.2)"
    ),
    ("Tick", "shortcut", NodeChange.CLOSED): (
        "no chain from the ring neighbours contains this label now; "
        "its holder is asked for its label (section 3.2.2; C5, R1)"
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
        "the node is not an end of the line, so it has no wrap edge (BuildRingTimeout; R13)"
    ),
    **{
        ("UnsubscribeRequested", kind, change): _FORGOTTEN
        for kind in ("neighbour", "ring", "shortcut")
        for change in (NodeChange.LOST, NodeChange.CLOSED)
    },
}
UNEXPLAINED: Final = "no rule explains this change: please report it"


def explanation(cause: str, kind: str, change: NodeChange) -> str:
    """Return the sentence that explains a change, with its citation."""
    if change is NodeChange.VOID:
        return _VOID
    return WHY.get((cause, kind, change), UNEXPLAINED)
