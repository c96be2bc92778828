"""What a machine asks of its host; a closed set, carried out in the order given."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from skipring.core.messages import GetConfiguration, Message
from skipring.core.peers import SUPERVISOR, NodeId


class Send(Struct, frozen=True, gc=False):
    """Put ``message`` into the channel of ``to``."""

    to: NodeId
    message: Message


class Left(Struct, frozen=True, gc=False):
    """The supervisor has let this node go: the topic's machine may be removed (section 4)."""


Effect: TypeAlias = Send | Left


class Outbox:
    """Collects the effects of one event, in order."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects: list[Effect] = []

    def send(self, to: NodeId, message: Message) -> None:
        """Send ``message`` to a node."""
        self.effects.append(Send(to, message))

    def ask(self, about: NodeId) -> None:
        """Ask the supervisor to send ``about`` its configuration."""
        self.effects.append(Send(SUPERVISOR, GetConfiguration(about)))
