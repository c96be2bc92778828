"""Status replies of nodes."""

from __future__ import annotations

from skipring.core.state import SubscriberState
from skipring.wire.rpc import NodeStatus


def status_of(
    state: SubscriberState, *, count: int | None = None, root: bytes | None = None
) -> NodeStatus:
    """Return the status of a node in a state; it may claim other publications than it holds."""
    stored = sum(batch.count for batch in state.publications) if count is None else count
    return NodeStatus(
        request=0,
        member=state.member,
        label=state.label,
        left=state.left,
        right=state.right,
        ring=state.ring,
        shortcuts=tuple(state.shortcuts.items()),
        silence={},
        digests={},
        count=stored,
        end=stored,
        root=state.trie().root() if root is None else root,
    )
