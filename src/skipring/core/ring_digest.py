"""Digest over the whole ring, which the supervisor compares with its roster (R14).

Two swapped entries of the database look correct to every single node, so no node reports them, and
round robin takes n intervals to find them. Each node adds up the (label, node) pairs of its subtree
and sends the sum to its parent; the node with label 0 sends it to the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox, Send
from skipring.core.labels import CIRCLE
from skipring.core.messages import Digest
from skipring.core.peers import NodeId, Peer


class RingDigest:
    """Digest of the subtree below one subscriber."""

    __slots__ = ("_config", "_own", "_weight", "heard")

    def __init__(self, config: ProtocolConfig) -> None:
        self._config = config
        self._own: Peer | None = None
        self._weight = 0
        self.heard: dict[NodeId, int] = {}

    def on_tick(
        self, me: Peer, children: Iterable[NodeId], parent: NodeId | None, out: Outbox
    ) -> int:
        """Add up the digests of the children, send the sum to the parent and return it."""
        if me != self._own:
            self._own, self._weight = me, me.weight
        total, heard = self._weight, self.heard
        if heard:
            self.heard = {child: heard[child] for child in children if child in heard}
            total += sum(self.heard.values())
        total %= CIRCLE
        if parent is not None and parent != me.node:
            out.append(Send(parent, Digest(me.node, total)))
        return total

    def drop_derived(self) -> None:
        """Drop this node's weight, which may be corrupted; the next tick derives it again."""
        self._own = None

    def on_digest(self, message: Digest) -> None:
        """Record the digest of a node; the next tick drops it if the node is not a child."""
        has_room = message.node in self.heard or len(self.heard) < self._config.digest_senders_max
        if self._config.rules.digest and has_room:
            self.heard[message.node] = message.digest % CIRCLE

    def load(self, heard: Mapping[NodeId, int]) -> None:
        """Replace the recorded digests; the values may be corrupted."""
        self.heard = dict(heard)

    @property
    def wrong_weight(self) -> int | None:
        """Return the cached weight of this node if it is wrong, else None."""
        own = self._own
        return None if own is None or own.weight == self._weight else self._weight

    def load_weight(self, own: Peer | None, weight: int | None) -> None:
        """Replace the cached weight of this node; the value may be corrupted."""
        self._own = own if weight is not None else None
        self._weight = weight if weight is not None else 0
