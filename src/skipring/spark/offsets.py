"""Positions of a stream in each topic: ``{topic: {store, epoch, offset, chain}}``.

An offset counts the records in the store of one member, in the order of arrival. It may be inside
a batch. The chain value depends on all batches that begin before the offset and on their order, and
shows whether the store still has them (decision 0043).

A position may have a standby: the same position in the store of another member, so that a query
continues when the first store is gone. The standby is everything before ``offset`` there, plus the
ids that were read and arrived later (``seen``), minus the entries that arrived before and were not
read (``missing``).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Self

from msgspec import Meta, Struct, convert

from skipring.core.limits import CHAIN_BYTES, EARLIER_CHAIN_BYTES, shown
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.core.trie import OFFSET_MAX
from skipring.errors import InputError

EPOCH_MAX: Final = (1 << 62) - 1  # as in segments
EXCEPTIONS_MAX: Final = 1024  # Guess: two members with a larger difference are not equivalent.
_OFFSET_BYTES: Final = 8
_RECORD_BYTES: Final = _OFFSET_BYTES + ID_BYTES

Entry = tuple[int, bytes]  # an offset and the id of the record there
Json = dict[str, Any]


class LogPlace(Struct, frozen=True, kw_only=True):
    """Offset in the log of one member's store."""

    store: str
    epoch: int
    offset: int
    chain: bytes = b""  # chain value there; empty at offset 0, or if unknown

    def bare(self) -> LogPlace:
        """Return the place without the other fields of a position."""
        return LogPlace(store=self.store, epoch=self.epoch, offset=self.offset, chain=self.chain)

    def is_in_log_of(self, other: LogPlace) -> bool:
        """Return True if both are in the same epoch of a store; offset 0 is in every epoch."""
        return self.store == other.store and (self.epoch == other.epoch or not self.offset)


class Standby(LogPlace, frozen=True, kw_only=True):
    """Same position in the store of another member."""

    missing: tuple[Entry, ...] = ()  # before the offset, but not read
    seen: frozenset[bytes] = frozenset()  # read, but not before the offset

    def offset_after(self, count: int) -> int:
        """Return the offset before which there are as many entries as read after more reads.

        Two members have stored the same publications in roughly the same order, so few differ.
        """
        return max(self.offset, self.offset + count + len(self.seen) - len(self.missing))

    def moved(self, read: Iterable[bytes], arrived: Iterable[Entry], end: LogPlace) -> Self | None:
        """Return the standby after more reads and arrivals; None if the stores differ too much."""
        missing = {key: offset for offset, key in self.missing}
        seen = set(self.seen)
        for key in read:
            if missing.pop(key, None) is None:
                seen.add(key)
        for offset, key in arrived:
            if key in seen:
                seen.remove(key)
            else:
                missing[key] = offset
        if max(len(missing), len(seen)) > EXCEPTIONS_MAX:
            return None
        return type(self)(
            store=end.store,
            epoch=end.epoch,
            offset=end.offset,
            chain=end.chain,
            missing=tuple(sorted((offset, key) for key, offset in missing.items())),
            seen=frozenset(seen),
        )


class Position(LogPlace, frozen=True, kw_only=True):
    """Position up to which a topic has been read."""

    seen: frozenset[bytes] = frozenset()  # read from a store that is gone; skip these ids
    begun: int | None = None  # start of the first micro-batch; Spark stores only its end
    standby: Standby | None = None


class _BarePlace(Struct, frozen=True, forbid_unknown_fields=True):
    """Place as Spark stores it: ids in base64, the chain value in hexadecimal digits."""

    store: str
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
    chain: str = ""
    seen: str = ""

    def fields(self) -> Json:
        """Return the fields of a place and the ids; raise ValueError if they are malformed."""
        chain = bytes.fromhex(self.chain)
        if len(chain) not in (0, EARLIER_CHAIN_BYTES, CHAIN_BYTES):
            raise ValueError(f"a chain value has {2 * CHAIN_BYTES} hexadecimal digits")
        place = {"store": self.store, "epoch": self.epoch, "offset": self.offset}
        return {**place, "chain": chain, "seen": frozenset(_cut(self.seen, ID_BYTES))}


class _BareStandby(_BarePlace, frozen=True, forbid_unknown_fields=True):
    missing: str = ""

    def standby(self) -> Standby:
        missing = tuple(
            (int.from_bytes(record[:_OFFSET_BYTES], "big"), record[_OFFSET_BYTES:])
            for record in _cut(self.missing, _RECORD_BYTES)
        )
        return Standby(missing=missing, **self.fields())


class _BarePosition(_BarePlace, frozen=True, forbid_unknown_fields=True):
    begun: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None = None
    standby: _BareStandby | None = None

    def position(self) -> Position:
        standby = None if self.standby is None else self.standby.standby()
        return Position(begun=self.begun, standby=standby, **self.fields())


def to_json(positions: Mapping[TopicId, Position]) -> dict[TopicId, Json]:
    """Return positions in the form that Spark stores."""
    return {topic: _position_to_json(position) for topic, position in sorted(positions.items())}


def _position_to_json(position: Position) -> Json:
    known = _place_to_json(position)
    if position.seen:
        known["seen"] = _text(sorted(position.seen))
    if position.begun is not None:
        known["begun"] = position.begun
    standby = position.standby
    if standby is not None:
        records = (o.to_bytes(_OFFSET_BYTES, "big") + key for o, key in standby.missing)
        known["standby"] = {
            **_place_to_json(standby),
            "missing": _text(records),
            "seen": _text(sorted(standby.seen)),
        }
    return known


def place_text(place: LogPlace) -> str:
    """Return a place as a value of the column ``position``; empty without a disk."""
    return json.dumps(_place_to_json(place)) if place.store else ""


def _place_to_json(place: LogPlace) -> Json:
    known: Json = {"store": place.store, "epoch": place.epoch, "offset": place.offset}
    if place.chain:
        known["chain"] = place.chain.hex()
    return known


def from_json(positions: Mapping[str, Any]) -> dict[TopicId, Position]:
    """Return stored positions; raise InputError if they are malformed."""
    return {topic: _position(topic, given) for topic, given in positions.items()}


def parse_positions(text: str, option: str) -> dict[TopicId, Position]:
    """Parse the positions in the value of an option."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given:
        raise InputError(
            f'{option} is "earliest", "latest" or JSON such as '
            f'{{"orders": {{"store": "5eed", "epoch": 0, "offset": 42}}}}, not {shown(text)}'
        )
    return from_json(given)


def _position(topic: TopicId, given: object) -> Position:
    try:
        return convert(given, _BarePosition).position()
    except ValueError as error:  # msgspec's ValidationError is one
        raise InputError(
            f"the position of topic {shown(topic)} is not {{store, epoch, offset, chain}}: {error}"
        ) from None


def _text(records: Iterable[bytes]) -> str:
    return b64encode(b"".join(records)).decode()


def _cut(text: str, size: int) -> list[bytes]:
    data = b64decode(text, validate=True)
    if len(data) % size:
        raise ValueError("a standby whose ids are cut short")
    return [data[at : at + size] for at in range(0, len(data), size)]
