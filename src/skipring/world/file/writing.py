"""Writer of world files: sorted keys, one line for each subscriber and message."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from skipring.core.labels import Label
from skipring.core.peers import EdgeKind, Peer
from skipring.core.publications import Publication
from skipring.core.state import (
    LivenessState,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SupervisorState,
)
from skipring.core.summaries import RangeSummary
from skipring.world.file.document import FORMAT
from skipring.world.file.memory import memory_fields
from skipring.world.file.messages import message_fields
from skipring.world.file.publications import claim_fields, hashes_fields, publication_fields
from skipring.world.snapshot import Parcel, Snapshot


def render_world(snapshot: Snapshot) -> str:
    """Return the world file of a state; it omits the sender and serial number of messages."""
    subscribers = (
        f"{_json(node)}: {_json(_subscriber(state))}"
        for node, state in sorted(snapshot.subscribers.items())
    )
    world = {
        "channels": _block("[]", (_json(_parcel(parcel)) for parcel in snapshot.channels)),
        "crashed": _json(snapshot.crashed),
        "format": _json(FORMAT),
        "subscribers": _block("{}", subscribers),
        "supervisor": _json(_supervisor(snapshot.supervisor)),
        "topic": _json(snapshot.topic),
    }
    return _block("{}", (f"{_json(key)}: {text}" for key, text in world.items())) + "\n"


def _block(brackets: str, lines: Iterable[str]) -> str:
    body = ",\n".join(lines)
    return f"{brackets[0]}\n{body}\n{brackets[1]}" if body else brackets


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    """Return the JSON form of a value that JSON has no type for."""
    if type(value) not in _PLAIN:
        message = f"a world file cannot hold a {type(value).__name__}"
        raise TypeError(message)
    return _PLAIN[type(value)](value)


_PLAIN: Final[Mapping[type, Callable[[Any], object]]] = {
    Label: lambda label: label.bits,
    Peer: lambda peer: [peer.label.bits, peer.node],
    EdgeKind: lambda link: link.value,
    bytes: lambda data: base64.b64encode(data).decode(),
    LivenessState: lambda state: [state.ticks, state.threshold, state.pending],
    Publication: publication_fields,
    RangeSummary: claim_fields,
}


def _supervisor(state: SupervisorState) -> dict[str, Any]:
    fields = {"database": state.database, "next": state.next}
    return fields | _unless_empty(queue=state.queue, memory=_memory(state.memory))


def _subscriber(state: SubscriberState) -> dict[str, Any]:
    fields = {
        "member": state.member,
        "label": state.label,
        "left": state.left,
        "right": state.right,
        "ring": state.ring,
        "shortcuts": {label.bits: holder for label, holder in state.shortcuts.items()},
        "publications": state.publications,
    }
    return fields | _unless_empty(
        silence=state.silence,
        digests=state.digests,
        hashes=hashes_fields(state.hashes),
        memory=_memory(state.memory),
    )


def _memory(memory: SubscriberMemory | SupervisorMemory | None) -> dict[str, Any] | None:
    return memory_fields(memory) if memory is not None else None


def _unless_empty(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _parcel(parcel: Parcel) -> dict[str, Any]:
    return {"to": parcel.to, "message": message_fields(parcel.message)}
