"""Messages between ring neighbours, and those that are known to change nothing (decision 0055).

In a ring at rest, the routine messages of a tick are those of the tick before. The handlers of
this module are functions of a message and the place of the node, except for what they record about
the life of the sender and its digest. So messages that have changed nothing and caused no effect
change nothing again at the same place: then only the records are updated.

The messages that a node sends to its neighbours at a tick are a function of its place, too. After a
tick that has changed nothing, the next one sends them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct

from skipring.core.effects import Effect, Outbox
from skipring.core.events import Event, Received, RoutineReceived, Tick
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Digest,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    RoutineMessage,
    SetConfiguration,
)
from skipring.core.neighbour_liveness import NeighbourLiveness
from skipring.core.peers import NodeId, Peer
from skipring.core.ring import Ring
from skipring.core.ring_digest import RingDigest
from skipring.core.shortcuts import Shortcuts

# This node, left, right and wrap, labels and holders of shortcuts.
RingPlace: TypeAlias = tuple[
    Peer | None,
    Peer | None,
    Peer | None,
    Peer | None,
    tuple[Label, ...],
    tuple[NodeId | None, ...],
]
SENDERS_MAX: Final = 128  # Limit: a member of a ring of 2^64 has fewer neighbours.


class RingTick(Struct, frozen=True, gc=False):
    """Cached tick of ring and shortcuts: its effects, and values derived from the place."""

    effects: tuple[Effect, ...]
    length: int  # of the label
    neighbours: list[NodeId]  # distinct ring neighbours
    children: list[NodeId]  # known ones in the tree
    parent: NodeId | None


class RingMessages:
    """Routine messages of one subscriber, and its handlers of the messages of neighbours."""

    __slots__ = (
        "_digest",
        "_liveness",
        "_ring",
        "_shortcuts",
        "is_place_sure",
        "known",
        "known_at",
        "known_configuration",
        "known_tick",
    )

    def __init__(
        self, ring: Ring, shortcuts: Shortcuts, liveness: NeighbourLiveness, digest: RingDigest
    ) -> None:
        self._ring = ring
        self._shortcuts = shortcuts
        self._liveness = liveness
        self._digest = digest
        # Last messages of each sender that change nothing at a place. None: no host has passed
        # routine messages together.
        self.known: dict[NodeId, tuple[RoutineMessage, ...]] | None = None
        self.known_at: RingPlace | None = None
        self.known_configuration: SetConfiguration | None = None  # changes nothing at this place
        self.known_tick: RingTick | None = None  # of a tick that changes nothing at this place
        self.is_place_sure = False  # False if the place may differ from ``known_at``

    def place(self) -> RingPlace:
        """Return all variables that the handlers of this module read, but for ``RingDigest``."""
        if self.is_place_sure and self.known_at is not None:
            return self.known_at
        return self._derived_place()

    def _derived_place(self) -> RingPlace:
        ring, slots = self._ring, self._shortcuts.slots
        left, right = ring.neighbours
        return ring.me, left, right, ring.wrap, tuple(slots), tuple(slots.values())

    def invalidate_place(self) -> None:
        """Mark the place for a check, because it may have changed."""
        self.is_place_sure = False

    def _check_place(self) -> None:
        """Drop what is known about another place."""
        place = self._derived_place()
        if self.known is None or place != self.known_at:
            self.known, self.known_at = {}, place
            self.known_tick = self.known_configuration = None
        self.is_place_sure = True

    def knows(self, event: Event) -> bool:
        """Return True if an event is a tick at rest, or known messages: it changes no edge."""
        if not self.is_place_sure:
            return False
        match event:
            case RoutineReceived():
                return self.known is not None and self.known.get(event.sender) == event.messages
            case Tick():
                return self.is_at_rest
            case Received():
                return event.message == self.known_configuration
            case _:
                return False

    def repeat(self, event: RoutineReceived) -> bool:
        """Record messages that change nothing; return False if they are not known.

        ``on_routine`` would record the same, without effects.
        """
        known = self.known if self.is_place_sure else None
        if known is None or known.get(event.sender) != event.messages:
            return False
        self._on_repeated(event.messages)
        return True

    @property
    def is_at_rest(self) -> bool:
        """Return True if the last tick changed nothing, and the next one need not run again."""
        return self.is_place_sure and self.known_tick is not None

    # -- ticks -------------------------------------------------------------------------------

    def on_tick(self, me: Peer, out: Outbox) -> RingTick:
        """Run the periodic actions of ring and shortcuts, or repeat those of the last tick."""
        is_remembering = self.known is not None
        if is_remembering:
            self._check_place()
            if self.known_tick is not None:
                out += self.known_tick.effects
                return self.known_tick
        tick = self._run_tick(me, out)
        self.is_place_sure = is_remembering and self._derived_place() == self.known_at
        self.known_tick = tick if self.is_place_sure else None
        return tick

    def _run_tick(self, me: Peer, out: Outbox) -> RingTick:
        ring, shortcuts, begin = self._ring, self._shortcuts, len(out)
        ring.on_tick(me, out)
        pred, succ = ring.pred, ring.succ
        chains = shortcuts.on_tick(me, pred, succ, out)
        children, parent = shortcuts.tree_nodes(chains, pred, succ)
        neighbours = ring.neighbour_nodes()
        return RingTick(tuple(out[begin:]), me.label.length, neighbours, children, parent)

    # -- messages ----------------------------------------------------------------------------

    def on_routine(self, event: RoutineReceived, out: Outbox) -> bool:
        """Handle the routine messages of a node in order; return True if the place may change."""
        messages = event.messages
        if not self.is_place_sure:
            self._check_place()
        known = self.known
        assert known is not None
        if known.get(event.sender) == messages:
            self._on_repeated(messages)
            return False
        for message in messages:
            self.HANDLERS[type(message)](self, message, out)
        self.is_place_sure = self._derived_place() == self.known_at
        is_quiet = not out and self.is_place_sure
        if is_quiet and (event.sender in known or len(known) < SENDERS_MAX):
            known[event.sender] = messages
        return not self.is_place_sure

    def _on_repeated(self, messages: Iterable[RoutineMessage]) -> None:
        """Record that the sender of known messages lives, and its digest."""
        for message in messages:
            if type(message) is CheckLabel:
                self._liveness.on_heard(message.sender.node)
            elif type(message) is Digest:
                self._digest.on_digest(message)

    def configure(self, label: Label, message: SetConfiguration, out: Outbox) -> bool:
        """Apply a configuration with a label; return True if the place may change."""
        is_remembering, begin = self.known is not None, len(out)
        if is_remembering and not self.is_place_sure:
            self._check_place()
        if self.is_place_sure and message == self.known_configuration:
            return False
        self._ring.configure(label, message, out)
        self.is_place_sure = is_remembering and self._derived_place() == self.known_at
        is_quiet = self.is_place_sure and len(out) == begin
        self.known_configuration = message if is_quiet else None
        return not self.is_place_sure

    def drop_derived(self) -> None:
        """Drop the known messages: memory may be corrupted."""
        self.known = self.known_at = self.known_tick = self.known_configuration = None
        self.is_place_sure = False

    # -- handlers ----------------------------------------------------------------------------

    def _on_check_label(self, message: CheckLabel, out: Outbox) -> None:
        self._liveness.on_heard(message.sender.node)
        self._ring.on_check_label(message, out)

    def _on_introduce(self, message: Introduce, out: Outbox) -> None:
        if message.first_hand:
            self._liveness.on_heard(message.peer.node)
        self._ring.introduce(message.peer, message.link, out, first_hand=message.first_hand)

    def _on_introduce_shortcut(self, message: IntroduceShortcut, out: Outbox) -> None:
        self._shortcuts.on_introduce_shortcut(message.peer, out)

    def _on_remove_connections(self, message: RemoveConnections, out: Outbox) -> None:
        del out
        self._ring.on_remove_connections(message.node)
        self._shortcuts.on_remove_connections(message.node)

    def _on_digest(self, message: Digest, out: Outbox) -> None:
        del out
        self._digest.on_digest(message)

    HANDLERS: ClassVar[Mapping[type, Callable[[RingMessages, Any, Outbox], None]]] = (
        MappingProxyType(
            {
                CheckLabel: _on_check_label,
                Introduce: _on_introduce,
                IntroduceShortcut: _on_introduce_shortcut,
                RemoveConnections: _on_remove_connections,
                Digest: _on_digest,
            }
        )
    )
