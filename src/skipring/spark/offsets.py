"""Positions of a stream in each topic: ``{topic: {store, epoch, offset, chain}}``.

An offset is an arrival number in the store of one member. The chain value depends on all
publications before the offset and on their order, and shows whether the store still has them
(decision 0043).

A position may have a standby: the same position in the store of another member, so that a query
continues when the first store is gone. The standby is everything before ``offset`` there, plus the
ids that were read and arrived later (``seen``), minus the entries that arrived before and were not
read (``missing``).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from msgspec import Struct, ValidationError, convert

from skipring.core.limits import CHAIN_BYTES, shown
from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.core.trie import OFFSET_MAX
from skipring.errors import InputError

EPOCH_MAX: Final = (1 << 62) - 1  # as in packs
EXCEPTIONS_MAX: Final = 1024  # Guess: two members with a larger difference are not equivalent.
_OFFSET_BYTES: Final = 8
_RECORD_BYTES: Final = _OFFSET_BYTES + ID_BYTES

Entry = tuple[int, bytes]  # an offset and the id there
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

    def moved(self, read: Iterable[bytes], arrived: Iterable[Entry], end: LogPlace) -> Self | None:
        """Return the standby after more reads and arrivals; None if they differ too much."""
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


class _Bare(Struct, frozen=True, forbid_unknown_fields=True):
    """Position as Spark stores it or a user specifies it."""

    store: str
    epoch: int
    offset: int
    chain: str = ""
    seen: str = ""
    begun: int | None = None
    standby: dict[str, str | int] | None = None


class _BareStandby(Struct, frozen=True, forbid_unknown_fields=True):
    store: str
    epoch: int
    offset: int
    chain: str = ""
    missing: str = ""
    seen: str = ""


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
        bare = convert(given, _Bare)
        kept = None if bare.standby is None else convert(bare.standby, _BareStandby)
        standby = None if kept is None else _standby(kept)
        seen = frozenset(_cut(b64decode(bare.seen, validate=True), ID_BYTES))
        chain = _chain(bare.chain)
    except (ValidationError, ValueError) as error:
        raise InputError(
            f"the offset of topic {shown(topic)} is no {{store, epoch, offset, chain}}: {error}"
        ) from None
    places: list[_Bare | _BareStandby] = [bare] if kept is None else [bare, kept]
    if not all(0 <= place.epoch <= EPOCH_MAX for place in places):
        raise InputError(f"the epoch of topic {shown(topic)} is not from 0 to 2^62-1")
    if not all(0 <= each <= OFFSET_MAX for each in (bare.begun or 0, *(p.offset for p in places))):
        raise InputError(f"the offset of topic {shown(topic)} is not from 0 to 2^40-1")
    return Position(
        store=bare.store,
        epoch=bare.epoch,
        offset=bare.offset,
        chain=chain,
        seen=seen,
        begun=bare.begun,
        standby=standby,
    )


def _standby(kept: _BareStandby) -> Standby:
    records = _cut(b64decode(kept.missing, validate=True), _RECORD_BYTES)
    return Standby(
        store=kept.store,
        epoch=kept.epoch,
        offset=kept.offset,
        chain=_chain(kept.chain),
        missing=tuple(
            (int.from_bytes(record[:_OFFSET_BYTES], "big"), record[_OFFSET_BYTES:])
            for record in records
        ),
        seen=frozenset(_cut(b64decode(kept.seen, validate=True), ID_BYTES)),
    )


def _chain(text: str) -> bytes:
    chain = bytes.fromhex(text)
    if len(chain) not in (0, CHAIN_BYTES):
        raise ValueError(f"a chain value has {2 * CHAIN_BYTES} hexadecimal digits")
    return chain


def _text(records: Iterable[bytes]) -> str:
    return b64encode(b"".join(records)).decode()


def _cut(data: bytes, size: int) -> list[bytes]:
    if len(data) % size:
        raise ValueError("a standby whose ids are cut short")
    return [data[at : at + size] for at in range(0, len(data), size)]
