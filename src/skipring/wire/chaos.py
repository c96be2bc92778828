"""Fault-injection requests to a process that allows chaos.

The tags are part of the wire format: never reuse one.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from skipring.core.log_messages import Number
from skipring.wire.limits import (
    DamagedEntries,
    DamagedNodes,
    ForgedFrames,
    RingVariables,
)


class ChaosPing(Struct, frozen=True, array_like=True, gc=False, tag=96):
    """Request to confirm that a process allows fault injection; answered by ChaosAck or Refused.

    A process without chaos enabled refuses this and all other requests of this module.
    """

    request: Number


class Overwrite(RingVariables, frozen=True, array_like=True, gc=False, tag=97):
    """Request to overwrite a node's variables in the topic; answered by ChaosAck.

    Whether the application wants to be a member, and the stored publications, do not change.
    """


class OverwriteDatabase(Struct, frozen=True, array_like=True, gc=False, tag=98):
    """Request to overwrite a supervisor's database, place of the round robin and queue.

    Answered by ChaosAck.
    """

    request: Number
    database: DamagedEntries
    next: Number
    queue: DamagedNodes


class CorruptTrie(Struct, frozen=True, array_like=True, gc=False, tag=99):
    """Request to corrupt digests of a node's trie and to delete stored publications.

    ``seed`` selects them; two nodes with the same seed have the same wrong root. Answered by
    ChaosAck.
    """

    request: Number
    hashes: Number
    publications: Number
    seed: Number


class Forge(Struct, frozen=True, array_like=True, gc=False, tag=100):
    """Request to process these frames as messages without a known sender.

    A process accepts only messages of the paper that carry no publications. Answered by ChaosAck.
    """

    request: Number
    frames: ForgedFrames


class Isolate(Struct, frozen=True, array_like=True, gc=False, tag=101):
    """Request to drop all traffic with these nodes for ``ticks`` ticks; answered by ChaosAck.

    Without nodes it ends the isolation.
    """

    request: Number
    nodes: DamagedNodes
    ticks: Number


class Crash(Struct, frozen=True, array_like=True, gc=False, tag=102):
    """Request to end the process at once, as if it were killed; there is no answer."""

    request: Number


class ChaosAck(Struct, frozen=True, array_like=True, gc=False, tag=103):
    """Confirmation that the fault was injected."""

    request: Number


Damage: TypeAlias = (
    ChaosPing | Overwrite | OverwriteDatabase | CorruptTrie | Forge | Isolate | Crash
)
