"""What hosts say to each other beside the paper's messages: finding members, crashes, publishing.

The tags continue those of the core from 64 on and are part of the wire format: never reuse one.
A request has a number, chosen by whoever asks and repeated in the answer.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.messages import MESSAGE_TYPES, Message
from skipring.core.peers import NodeId
from skipring.core.publications import Publication

Address: TypeAlias = str  # "host:port"; a hint where to find a node, no part of its identity


class Locate(Struct, frozen=True, array_like=True, gc=False, tag=64):
    """Ask the supervisor for up to ``count`` members of the topic; answered by Members."""

    request: int
    count: int


class Members(Struct, frozen=True, array_like=True, gc=False, tag=65):
    """Some members of the topic and where they listen; none if there are none."""

    request: int
    members: dict[NodeId, Address]


class ReportSilent(Struct, frozen=True, array_like=True, gc=False, tag=66):
    """The sender has not heard from its ring neighbour ``node`` for a while (section 3.3)."""

    node: NodeId


class Probe(Struct, frozen=True, array_like=True, gc=False, tag=67):
    """The supervisor asks a node that was reported silent for a sign of life."""

    nonce: int


class ProbeReply(Struct, frozen=True, array_like=True, gc=False, tag=68):
    """The sign of life."""

    nonce: int


class ConfigurationAck(Struct, frozen=True, array_like=True, gc=False, tag=69):
    """A SetConfiguration has arrived at the sender: it is alive."""


class Publish(Struct, frozen=True, array_like=True, gc=False, tag=70):
    """Somebody who is no member asks one to publish for it; answered by Published or Refused.

    Whoever asks again after a lost answer gives the same publisher, seq and time: the id is then
    the same, and nothing is published twice.
    """

    request: int
    publication: Publication


class Published(Struct, frozen=True, array_like=True, gc=False, tag=71):
    """The publication is durable at the sender, under this id and at this offset."""

    request: int
    id: bytes
    offset: int


class Refused(Struct, frozen=True, array_like=True, gc=False, tag=72):
    """A request was not carried out, and why in one sentence."""

    request: int
    reason: str


RuntimeMessage: TypeAlias = (
    Locate
    | Members
    | ReportSilent
    | Probe
    | ProbeReply
    | ConfigurationAck
    | Publish
    | Published
    | Refused
)

RUNTIME_TYPES: Final[tuple[type[RuntimeMessage], ...]] = (
    Locate,
    Members,
    ReportSilent,
    Probe,
    ProbeReply,
    ConfigurationAck,
    Publish,
    Published,
    Refused,
)

WireMessage: TypeAlias = Message | RuntimeMessage

WIRE_TYPES: Final[tuple[type[WireMessage], ...]] = (*MESSAGE_TYPES, *RUNTIME_TYPES)
