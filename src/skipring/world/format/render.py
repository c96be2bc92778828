"""Writer of world files: sorted keys, one line for each subscriber and message."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import FieldInfo, replace
from msgspec.structs import fields as struct_fields

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.labels import Label
from skipring.core.messages import MESSAGE_TYPES, CheckHeld, Held, IHave, Want, ids_in
from skipring.core.peers import EdgeKind
from skipring.core.prefix import Prefix
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.summaries import SHORT_BYTES, RangeSummary
from skipring.world.snapshot import Parcel, Snapshot

FORMAT: Final = "skipring-world/1"
REQUIRED: Final[Mapping[type[Struct], frozenset[str]]] = {
    SubscriberState: frozenset({"member", "label", "left", "right", "ring", "shortcuts"}),
    SupervisorState: frozenset({"database", "next"}),
}
OBJECTS: Final = frozenset(MESSAGE_TYPES)  # arrays only on the wire


def _short_ids(ids: bytes) -> list[bytes]:
    return [ids[at : at + SHORT_BYTES] for at in range(0, len(ids), SHORT_BYTES)]


_UNPACK: Final[Mapping[tuple[type[Struct], str], Callable[[bytes], list[Any]]]] = {
    (IHave, "ids"): _short_ids,
    (IHave, "hops"): list,
    (Want, "ids"): _short_ids,
    (Want, "hops"): list,
    (CheckHeld, "ids"): ids_in,
    (Held, "held"): ids_in,
    (Held, "missing"): ids_in,
}


@lru_cache(maxsize=128)
def fields_of(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a struct, with their types."""
    return struct_fields(kind)


def render_world(snapshot: Snapshot) -> str:
    """Return the world file of a state; it omits the sender and serial number of messages.

    Keys are sorted; each subscriber and each message has a line.
    """
    subscribers = (
        f"{_json(node)}: {_json(_state(state))}"
        for node, state in sorted(snapshot.subscribers.items())
    )
    world = {
        "channels": _block("[]", (_json(_parcel(parcel)) for parcel in snapshot.channels)),
        "crashed": _json(snapshot.crashed),
        "format": _json(FORMAT),
        "subscribers": _block("{}", subscribers),
        "supervisor": _json(_state(snapshot.supervisor)),
        "topic": _json(snapshot.topic),
    }
    if snapshot.clocks.now:
        world["clocks"] = _json(snapshot.clocks)
    return _block("{}", (f"{_json(key)}: {text}" for key, text in sorted(world.items()))) + "\n"


def _block(brackets: str, lines: Iterable[str]) -> str:
    body = ",\n".join(lines)
    return f"{brackets[0]}\n{body}\n{brackets[1]}" if body else brackets


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    """Return the JSON form of a value without a JSON type."""
    match value:
        case Label() | Prefix():
            return value.bits
        case bytes():
            return value.hex()
        case EdgeKind():
            return value.value
        case RecordBatch():
            return _batch_fields(value)
        case RangeSummary():
            return _claim_fields(value)
        case Struct():
            return _struct_fields(value)
    message = f"a world file cannot hold a {type(value).__name__}"
    raise TypeError(message)


def _state(state: SubscriberState | SupervisorState) -> dict[str, Any]:
    """Return the variables of the paper, and all others that are not empty."""
    always = REQUIRED[type(state)] | {"publications"}
    values = {name: _member(state, name) for name in state.__struct_fields__}
    if state.memory is not None:
        values["memory"] = _struct_fields(state.memory)
    return {name: value for name, value in values.items() if value or name in always}


def _parcel(parcel: Parcel) -> dict[str, Any]:
    fields = _struct_fields(parcel.message)
    assert isinstance(fields, dict), "a message is an object"
    return {"to": parcel.to, "message": {"type": type(parcel.message).__name__} | fields}


def _struct_fields(part: Struct) -> dict[str, Any] | list[Any]:
    """Return the members of an array, or the fields that differ from their defaults."""
    kind = type(part)
    if kind.__struct_config__.array_like and kind not in OBJECTS:
        return [_member(part, name) for name in part.__struct_fields__]
    return {
        field.name: _member(part, field.name)
        for field in fields_of(kind)
        if field.required or getattr(part, field.name) != field.default
    }


def _member(part: Struct, name: str) -> object:
    """Return a field with its keys as JSON strings and packed bytes unpacked."""
    value = getattr(part, name)
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _plain(key): each for key, each in value.items()}
    unpack = _UNPACK.get((type(part), name))
    return unpack(value) if unpack is not None else value


def _batch_fields(batch: RecordBatch) -> dict[str, Any]:
    """Return a batch: one record as its own fields, several as a list, none if it is opaque."""
    fields: dict[str, Any] = {"publisher": batch.publisher, "seq": batch.first}
    records = _records_of(batch)
    if len(records) == 1:
        fields |= _record_fields(records[0])
    elif records:
        fields["records"] = [_record_fields(record) for record in records]
    else:
        fields |= {"count": batch.count} if batch.count != 1 else {}
        fields |= {"body": _base64(batch.body)} if batch.body else {}
    rest = {"unordered": batch.unordered, "id": batch.id}
    return fields | {name: value for name, value in rest.items() if value}


def _records_of(batch: RecordBatch) -> Sequence[BatchRecord]:
    """Return the records of a batch; none if the reader would not derive this body from them."""
    try:
        records = batch.records()
    except ValueError:
        return ()
    read = [replace(each, headers=dict(sorted(each.headers.items()))) for each in records]
    body = RecordBatch.of(read, publisher=batch.publisher, first=batch.first, topic="").body
    return records if body == batch.body else ()


def _record_fields(record: BatchRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"payload": _base64(record.payload)}  # an empty one is a payload
    if record.key is not None:
        fields["key"] = _base64(record.key)
    rest = {"time": record.time, "headers": record.headers}
    return fields | {name: value for name, value in rest.items() if value}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _claim_fields(claim: RangeSummary) -> dict[str, Any]:
    fields: dict[str, Any] = {"cover": claim.prefix}
    if claim.labels:
        fields["nodes"] = [[node.prefix, node.digest] for node in claim.summaries()]
    if claim.leaves:
        fields["leaves"] = claim.short_ids()
    return fields
