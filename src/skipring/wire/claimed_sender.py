"""Claimed sender of a message, compared with the peer of its connection (decision 0045).

The rule covers each field called ``sender``. A message that names its sender in another field, or
only in some cases, has a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import fields

from skipring.core.messages import (
    Digest,
    GetConfiguration,
    Introduce,
    RemoveConnections,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import NodeId, Peer
from skipring.wire.rpc import WIRE_TYPES, WireMessage

Claim = Callable[[Any, NodeId], bool]  # True if the message may come from this peer

SENDER: Final = "sender"


def _of_field(name: str) -> Claim:
    get = attrgetter(name)
    return lambda message, peer: get(message) == peer


def _claim_of(kind: type[WireMessage]) -> Claim | None:
    """Return the claim of a type with a field ``sender``; None for other types."""
    for field in fields(kind):
        if field.name == SENDER:
            return _of_field(f"{SENDER}.node" if field.type is Peer else SENDER)
    return None


def _introduces_itself(message: Introduce, peer: NodeId) -> bool:
    return not message.first_hand or message.peer.node == peer


def _asks_with_own_digest(message: GetConfiguration, peer: NodeId) -> bool:
    """Return True if the digest is the sender's; without one, any peer may ask about any node."""
    return message.digest is None or message.node == peer


CLAIMS: Final[Mapping[type[WireMessage], Claim]] = {
    Subscribe: _of_field("node"),
    Unsubscribe: _of_field("node"),
    GetConfiguration: _asks_with_own_digest,
    Introduce: _introduces_itself,
    RemoveConnections: _of_field("node"),
    Digest: _of_field("node"),
    **{kind: claim for kind in WIRE_TYPES if (claim := _claim_of(kind)) is not None},
}


def names_another(message: WireMessage, peer: NodeId) -> bool:
    """Return True if a message names another sender than the peer that sent it."""
    claim = CLAIMS.get(type(message))
    return claim is not None and not claim(message, peer)
