"""Messages between ring neighbours, and those that are known to change nothing (decision 0055).

In a ring at rest, the routine messages of a tick are those of the tick before. The handlers of
this module are functions of a message and the place of the node, except for what they record about
the life of the sender and its digest. So messages that have changed nothing and caused no effect
change nothing again at the same place: then only the records are updated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from skipring.core.effects import Outbox
from skipring.core.events import RoutineReceived
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Digest,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    RoutineMessage,
)
from skipring.core.neighbour_liveness import NeighbourLiveness
from skipring.core.peers import NodeId, Peer
from skipring.core.ring import Ring
from skipring.core.ring_digest import RingDigest
from skipring.core.shortcuts import Shortcuts

# This node, left, right and wrap, labels and holders of shortcuts.
Place: TypeAlias = tuple[
    Peer | None,
    Peer | None,
    Peer | None,
    Peer | None,
    tuple[Label, ...],
    tuple[NodeId | None, ...],
]
SENDERS_MAX: Final = 128  # Limit: a member of a ring of 2^64 has fewer neighbours.


class RingMessages:
    """Handlers of the messages of neighbours at one subscriber."""

    __slots__ = ("_digest", "_liveness", "_ring", "_shortcuts", "known", "known_at")

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
        self.known_at: Place | None = None

    def place(self) -> Place:
        """Return all variables that the handlers of this module read, but for ``RingDigest``."""
        ring, slots = self._ring, self._shortcuts.slots
        left, right = ring.neighbours
        return ring.me, left, right, ring.wrap, tuple(slots), tuple(slots.values())

    def is_known(self, event: RoutineReceived) -> bool:
        """Return True if messages change nothing at the place of the last messages."""
        return self.known is not None and self.known.get(event.sender) is event.messages

    def on_routine(self, event: RoutineReceived, out: Outbox) -> None:
        """Handle the routine messages of a node in order."""
        messages, place = event.messages, self.place()
        if self.known is None or place != self.known_at:
            self.known, self.known_at = {}, place
        if self.known.get(event.sender) is messages:
            self._on_repeated(messages)
            return
        for message in messages:
            self.HANDLERS[type(message)](self, message, out)
        is_quiet = not out and place == self.place()
        if is_quiet and (event.sender in self.known or len(self.known) < SENDERS_MAX):
            self.known[event.sender] = messages

    def _on_repeated(self, messages: Iterable[RoutineMessage]) -> None:
        """Record that the sender lives, and its digest."""
        for message in messages:
            if type(message) is CheckLabel:
                self._liveness.on_heard(message.sender.node)
            elif type(message) is Digest:
                self._digest.on_digest(message)

    def drop_derived(self) -> None:
        """Drop the known messages: memory may be corrupted."""
        self.known = self.known_at = None

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
