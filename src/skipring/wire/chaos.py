"""Fault-injection requests to a process that allows chaos.

The tags are part of the wire format: never reuse one.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from skipring.core.labels import Label
from skipring.core.peers import NodeId, Peer
from skipring.core.state import LivenessState


class ChaosPing(Struct, frozen=True, array_like=True, gc=False, tag=96):
    """Ask a process whether it lets itself be damaged; answered by Done or Refused.

    Only one that was started with ``--chaos`` does, and no other carries out what follows.
    """

    request: int


class Overwrite(Struct, frozen=True, array_like=True, gc=False, tag=97):
    """Let a node take over these variables in the topic, however wrong; answered by Done.

    What the application wants and what is stored stay as they are.
    """

    request: int
    label: Label | None
    left: Peer | None
    right: Peer | None
    ring: Peer | None
    shortcuts: tuple[tuple[Label, NodeId | None], ...]
    silence: dict[NodeId, LivenessState]
    digests: dict[NodeId, int]


class OverwriteDatabase(Struct, frozen=True, array_like=True, gc=False, tag=98):
    """Let a supervisor take over this database, place of the round robin and queue.

    Answered by Done.
    """

    request: int
    database: tuple[tuple[str, NodeId | None], ...]
    next: int
    queue: tuple[NodeId, ...]


class CorruptTrie(Struct, frozen=True, array_like=True, gc=False, tag=99):
    """Let a node get so many digests of its trie wrong, and lose so many stored publications.

    Which ones follows from ``seed``; two nodes with the same one believe in the same wrong root.
    Answered by Done.
    """

    request: int
    hashes: int
    publications: int
    seed: int


class Forge(Struct, frozen=True, array_like=True, gc=False, tag=100):
    """Let a process take these frames for messages that have come from nobody in particular.

    Only messages of the paper that bring no publications are taken. Answered by Done.
    """

    request: int
    frames: bytes


class Isolate(Struct, frozen=True, array_like=True, gc=False, tag=101):
    """Let a node drop all traffic with these nodes, for so many of its ticks; answered by Done.

    Nobody named: it talks to everybody again.
    """

    request: int
    nodes: tuple[NodeId, ...]
    ticks: int


class Crash(Struct, frozen=True, array_like=True, gc=False, tag=102):
    """Let a process end at once, as if it were killed; nobody is left to answer."""

    request: int


class ChaosAck(Struct, frozen=True, array_like=True, gc=False, tag=103):
    """A request for damage was carried out."""

    request: int


Damage: TypeAlias = (
    ChaosPing | Overwrite | OverwriteDatabase | CorruptTrie | Forge | Isolate | Crash
)
