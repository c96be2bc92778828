"""Conversations: values and messages written as text, and rings that stand."""

from __future__ import annotations

from collections.abc import Sequence

from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Digest,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    Message,
    SetConfiguration,
)
from skipring.core.peers import NodeId, Peer
from skipring.core.topology import legitimate_states
from skipring.sim.run import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries.building import node_names, world_of
from skipring.world.snapshot import Snapshot

# -- values as text --------------------------------------------------------------------------


def at(text: str) -> Peer:
    """The peer written as node@label: ``b@01``."""
    node, _, bits = text.partition("@")
    return Peer(Label.parse(bits), node)


def peer_or_none(text: str) -> Peer | None:
    """The peer written as node@label, or none, written as a dash."""
    return None if text == "-" else at(text)


def place(pred: str, bits: str, succ: str) -> SetConfiguration:
    """The configuration of somebody between two peers written as text."""
    return SetConfiguration(peer_or_none(pred), Label.parse(bits), peer_or_none(succ))


def text_of(value: Peer | Label | None) -> str:
    """A value as transcripts write it."""
    if isinstance(value, Peer):
        return f"{value.node}@{value.label}"
    return "-" if value is None else value.bits


def sentence(message: Message) -> str:
    """A message as transcripts write it."""
    return f"{type(message).__name__} {_words(message)}"


def _words(message: Message) -> str:
    match message:
        case SetConfiguration(pred, label, succ):
            return f"pred={text_of(pred)} label={text_of(label)} succ={text_of(succ)}"
        case CheckLabel(sender, believed, link):
            return f"{text_of(sender)} believes {text_of(believed)} {link.value}"
        case Introduce(peer, link, first_hand):
            return f"{text_of(peer)} {link.value} {'first-hand' if first_hand else 'hearsay'}"
        case IntroduceShortcut(peer):
            return text_of(peer)
        case Digest(node, digest) | GetConfiguration(node, digest) if digest is not None:
            return f"{node} {digest:016x}"
        case _:
            return f"{message.node}"


# -- rings -----------------------------------------------------------------------------------


def standing_ring(nodes: int | Sequence[NodeId]) -> Snapshot:
    """SR(n): the node with the i-th name has the label l(i)."""
    names = node_names(nodes) if isinstance(nodes, int) else nodes
    return world_of(dict(legitimate_states(names)), names)


def simulation(start: Snapshot, **options: object) -> Simulation:
    """A simulation that starts in a given state."""
    return Simulation(make_scenario(options), start=start)
