"""Memory of machines, besides the variables of the paper, in a world file.

Each part of a machine is an object; the file omits a field with the value of a new machine. Ids and
parts of ids are hex. Unlike elsewhere in the file, a node need not be in the world: memory may name
nodes that have left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields as struct_fields

from skipring.core.labels import Label
from skipring.core.messages import HOPS_MAX, IHave
from skipring.core.peers import NodeId
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.state import (
    AnnouncementState,
    ArrivalState,
    BroadcastState,
    CompletenessState,
    DrainState,
    HandoversState,
    HandoverState,
    LazyPushState,
    NumberState,
    PendingWantState,
    RepairState,
    ReplicaState,
    ScrubState,
    SubscriberMemory,
    SupervisorMemory,
    TransferState,
)
from skipring.core.summaries import SHORT_BYTES
from skipring.core.topology import Chains
from skipring.core.trie import OFFSET_BYTES
from skipring.world.file.publications import (
    PublicationReader,
    claims,
    hops_of_each,
    prefix,
    short_ids,
    short_ids_list,
)
from skipring.world.file.values import (
    Parser,
    Shape,
    complaint,
    entries,
    expected,
    flag,
    hex_bytes,
    integer,
    label_or_none,
    node_name,
    pair,
    sequence,
    tuple_of,
    word,
)

OFFSET_MAX: Final = (1 << 8 * OFFSET_BYTES) - 1


class MemoryReader:
    """Parser of the memory of machines, including publications of a topic."""

    def __init__(self, publications: PublicationReader) -> None:
        self.supervisor: Parser = _SUPERVISOR
        self.subscriber: Parser = _object(
            SubscriberMemory,
            audit_ticks=integer,
            chains=_chains,
            weight=word,
            spreading=_object(
                BroadcastState,
                calm_ticks=integer,
                has_news=flag,
                news_ticks=integer,
                put_off=integer,
                arrivals=_list(_row(ArrivalState, publications.publications, _hops, _NODES)),
                tree_edges=_NODES,
                levels=integer,
            ),
            announcing=_ANNOUNCING,
            repair=_REPAIR,
            histories=_HISTORIES,
            scrub=_SCRUB,
            holdings=_HOLDINGS,
            handovers=_HANDOVERS,
            drain=_DRAIN,
            completeness=_COMPLETENESS,
        )


# -- kinds of values -------------------------------------------------------------------------


def _object(kind: type[Struct], **fields: Parser) -> Parser:
    """Return a parser of an object whose fields are all optional."""
    shape = Shape(required=frozenset(), optional=frozenset(fields))

    def parse(value: object, place: str) -> Struct:
        given = shape.fields(value, place)
        return kind(**{name: fields[name](each, f"{place}.{name}") for name, each in given.items()})

    return parse


def _row(kind: Callable[..., Any], *parsers: Parser) -> Parser:
    """Return a parser of a list with one value of each kind."""

    def parse(value: object, place: str) -> Any:  # noqa: ANN401  (depends on the kind)
        values = sequence(value, place)
        if len(values) != len(parsers):
            raise expected(f"a list of {len(parsers)}", value, place)
        return kind(
            *(p(v, f"{place}[{i}]") for i, (p, v) in enumerate(zip(parsers, values, strict=True)))
        )

    return parse


def _list(parse: Parser) -> Parser:
    return lambda value, place: tuple_of(parse, value, place)


def _map(key: Parser, parse: Parser) -> Parser:
    return lambda value, place: {
        key(name, place): parse(each, f"{place}.{name}") for name, each in entries(value, place)
    }


def _or_none(parse: Parser) -> Parser:
    return lambda value, place: None if value is None else parse(value, place)


def _at_most(most: int) -> Parser:
    def parse(value: object, place: str) -> int:
        number = integer(value, place)
        if not 0 <= number <= most:
            raise expected(f"an integer from 0 to {most}", value, place)
        return number

    return parse


def _short_id(value: object, place: str) -> bytes:
    return hex_bytes(value, place, SHORT_BYTES)


def _id(value: object, place: str) -> bytes:
    return hex_bytes(value, place, ID_BYTES)


def _label(value: object, place: str) -> Label:
    label = label_or_none(value, place)
    if label is None:
        raise expected("a label that l produces", value, place)
    return label


def _ihave(value: object, place: str) -> IHave:
    fields = _IHAVE.fields(value, place)
    parsers: Mapping[str, Parser] = {"sender": node_name, "ids": short_ids, "hops": hops_of_each}
    try:
        return IHave(
            **{name: parse(fields[name], f"{place}.{name}") for name, parse in parsers.items()}
        )
    except ValueError as error:  # each field is valid, the combination is not
        raise complaint(place, str(error)) from None


def _chains(value: object, place: str) -> Chains:
    fields = _CHAINS.fields(value, place)
    return Chains(
        **{name: parse(fields[name], f"{place}.{name}") for name, parse in _CHAINS_FIELDS.items()}
    )


def _pair_of_integers(value: object, place: str) -> tuple[int, int]:
    one, other = pair(value, place, "a list of 2")
    return integer(one, f"{place}[0]"), integer(other, f"{place}[1]")


_hops: Final = _at_most(HOPS_MAX)
_offset: Final = _at_most(OFFSET_MAX)
_NODES: Final = _list(_or_none(node_name))
_COUNTERS: Final = _map(node_name, integer)
_IHAVE: Final = Shape(required=frozenset({"sender", "ids", "hops"}))
_CHAINS_FIELDS: Final[Mapping[str, Parser]] = {
    "own": _label,
    "pred": label_or_none,
    "succ": label_or_none,
    "slots": _list(_label),
    "left_end": label_or_none,
    "right_end": label_or_none,
    "children": _list(_label),
    "parent": label_or_none,
}
_CHAINS: Final = Shape(required=frozenset(_CHAINS_FIELDS))

_ANNOUNCING: Final = _object(
    LazyPushState,
    news=_map(_short_id, _row(AnnouncementState, _hops, _NODES)),
    missing=_map(_short_id, _row(PendingWantState, node_name, _hops, integer)),
    heard=_list(_ihave),
    recent=_list(_short_id),
    told=_list(_short_id),
)
_REPAIR: Final = _object(
    RepairState,
    session=integer,
    patience=integer,
    open_ticks=integer,
    quiet_ticks=integer,
    period=integer,
    claims=claims,
)
_HISTORIES: Final = _object(
    TransferState,
    source=node_name,
    source_ticks=integer,
    received_ticks=integer,
    rest_ticks=integer,
    served=_map(node_name, _pair_of_integers),
)
_SCRUB: Final = _object(
    ScrubState, offset=integer, end=integer, ids=integer, found=integer, has_doubts=flag
)
_HOLDINGS: Final = _object(
    ReplicaState,
    numbers=_list(_row(NumberState, node_name, integer, _or_none(integer))),
    spent=_COUNTERS,
    unindexed=_map(_id, _offset),
    index=_map(_id, _or_none(_offset)),
    count=_offset,
    scrubbed=integer,
)
_HANDOVERS: Final = _object(
    HandoversState,
    session=integer,
    to=_map(
        node_name,
        _row(
            HandoverState,
            integer,
            _list(prefix),
            _map(_id, integer),
            _or_none(integer),
            flag,
            integer,
        ),
    ),
)
_DRAIN: Final = _object(
    DrainState,
    ticks=integer,
    receiver=node_name,
    ids=_list(_id),
    everything=flag,
    takes_memory=flag,
    told=_map(node_name, node_name),
    passed=_list(node_name),
    absent=_list(node_name),
    leaving=_COUNTERS,
)
_COMPLETENESS: Final = _object(
    CompletenessState,
    complete=flag,
    age=integer,
    session=integer,
    asked=node_name,
    asked_times=integer,
    confirmed=_list(node_name),
)
_SUPERVISOR: Final = _object(
    SupervisorMemory,
    ticks=integer,
    calm_ticks=integer,
    mismatches=integer,
    refresh_ticks=integer,
    answered=_pair_of_integers,
    told=_COUNTERS,
    suspects=_COUNTERS,
    digest=word,
    audited=integer,
    audited_sum=integer,
    index=_COUNTERS,
)


# -- writing ---------------------------------------------------------------------------------


def memory_fields(memory: SubscriberMemory | SupervisorMemory) -> dict[str, Any]:
    """Return the memory of a machine as an object of the world file."""
    return _changed(memory)


def _changed(part: Struct) -> dict[str, Any]:
    """Return the fields of a part that differ from those of a new machine."""
    return {
        field.name: _written(value)
        for field in struct_fields(type(part))
        if (value := getattr(part, field.name)) != field.default or field.required
    }


def _written(value: object) -> object:
    """Return the form of a value in the file; JSON or ``writing`` covers types without a writer."""
    write = _WRITERS.get(type(value))
    return write(value) if write is not None else value


def _key(key: NodeId | bytes) -> str:
    return key.hex() if isinstance(key, bytes) else key


def _listed(part: Struct) -> list[object]:
    return [_written(getattr(part, name)) for name in part.__struct_fields__]


def _ihave_fields(message: IHave) -> dict[str, Any]:
    ids, hops = short_ids_list(message.ids), list(message.hops)
    return {"sender": message.sender, "ids": ids, "hops": hops}


_WRITERS: Final[Mapping[type, Callable[[Any], object]]] = {
    **dict.fromkeys(
        (AnnouncementState, ArrivalState, PendingWantState, HandoverState, NumberState), _listed
    ),
    **dict.fromkeys((LazyPushState, Chains, TransferState, ReplicaState), _changed),
    **dict.fromkeys((RepairState, ScrubState, BroadcastState), _changed),
    **dict.fromkeys((HandoversState, DrainState, CompletenessState), _changed),
    Prefix: attrgetter("bits"),
    IHave: _ihave_fields,
    dict: lambda value: {_key(key): _written(each) for key, each in value.items()},
    tuple: lambda value: [_written(each) for each in value],
    bytes: bytes.hex,
}
