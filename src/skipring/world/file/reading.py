"""Reader of world files: a snapshot, or one sentence that names the first error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from skipring.core.labels import Label
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.state import LivenessState, SubscriberState, SupervisorState
from skipring.world.file.document import FORMAT, load
from skipring.world.file.memory import MemoryReader
from skipring.world.file.messages import MessageReader
from skipring.world.file.publications import PublicationReader, hashes
from skipring.world.file.values import (
    Parser,
    References,
    Shape,
    complaint,
    digest,
    entries,
    expected,
    flag,
    integer,
    label_or_none,
    label_text,
    mapping,
    node_name,
    pair,
    sequence,
    shown,
    topic,
    tuple_of,
)
from skipring.world.snapshot import Parcel, Snapshot

_WORLD: Final = Shape(
    required=frozenset({"format", "topic", "supervisor", "subscribers"}),
    optional=frozenset({"crashed", "channels"}),
)
_SUPERVISOR: Final = Shape(
    required=frozenset({"database", "next"}),
    optional=frozenset({"queue", "memory"}),
)
_SUBSCRIBER: Final = Shape(
    required=frozenset({"member", "label", "left", "right", "ring", "shortcuts"}),
    optional=frozenset({"silence", "digests", "publications", "hashes", "memory"}),
)
_PARCEL: Final = Shape(required=frozenset({"to", "message"}))


def parse_world(text: str | bytes) -> Snapshot:
    """Return the state in a world file; raise WorldFormatError if the text is not a world file."""
    world = mapping(load(text), "the file")
    if world.get("format", FORMAT) != FORMAT:  # first: another format may have other keys
        raise expected(repr(FORMAT), world["format"], "format")
    world = _WORLD.fields(world, "the file")
    crashed: tuple[NodeId, ...] = tuple_of(_declared, world.get("crashed", []), "crashed")
    subscribers = entries(world["subscribers"], "subscribers")
    dead = frozenset(crashed)
    for node, _ in subscribers:
        _declared(node, "subscribers")
        if node in dead:
            raise complaint(f"subscribers.{node}", "the node is also in crashed")
    name = topic(world["topic"], "topic")
    references = References(frozenset({SUPERVISOR, *crashed, *dict(subscribers)}))
    reader = _WorldReader(references, PublicationReader(name))
    return Snapshot(
        topic=name,
        supervisor=reader.supervisor(world["supervisor"], "supervisor"),
        subscribers={
            node: reader.subscriber(state, f"subscribers.{node}") for node, state in subscribers
        },
        crashed=crashed,
        channels=tuple(reader.channels(world.get("channels", []), "channels")),
    )


def _declared(value: object, place: str) -> NodeId:
    """Return the name of a subscriber, live or crashed."""
    node = node_name(value, place)
    if node == SUPERVISOR:
        raise complaint(place, f"no subscriber can be called {SUPERVISOR!r}")
    return node


class _WorldReader:
    """Parser of everything that refers to nodes or to publications."""

    def __init__(self, references: References, publications: PublicationReader) -> None:
        self._references = references
        self._messages = MessageReader(references, publications)
        self._memory = MemoryReader(publications)
        self._subscriber_fields: Mapping[str, Parser] = {
            "member": flag,
            "label": label_or_none,
            "left": references.peer_or_none,
            "right": references.peer_or_none,
            "ring": references.peer_or_none,
            "shortcuts": self._shortcuts,
            "silence": self._silence,
            "digests": self._digests,
            "publications": publications.publications,
            "hashes": hashes,
            "memory": self._memory.subscriber,
        }

    def supervisor(self, value: object, place: str) -> SupervisorState:
        """Return the variables of the supervisor."""
        fields = _SUPERVISOR.fields(value, place)
        return SupervisorState(
            database=tuple_of(self._record, fields["database"], f"{place}.database"),
            next=integer(fields["next"], f"{place}.next"),
            queue=tuple_of(self._references.node, fields.get("queue", []), f"{place}.queue"),
            memory=(
                self._memory.supervisor(fields["memory"], f"{place}.memory")
                if "memory" in fields
                else None
            ),
        )

    def _record(self, value: object, place: str) -> tuple[str, NodeId | None]:
        """Return a database entry; only here a label that l never produces stays as it is."""
        label, node = pair(value, place)
        return (
            label_text(label, f"{place}[0]"),
            self._references.node_or_none(node, f"{place}[1]"),
        )

    def subscriber(self, value: object, place: str) -> SubscriberState:
        """Return the variables of a subscriber."""
        fields = _SUBSCRIBER.fields(value, place)
        return SubscriberState(**_parsed(fields, self._subscriber_fields, place))

    def _shortcuts(self, value: object, place: str) -> dict[Label, NodeId | None]:
        shortcuts = {}
        for bits, holder in entries(value, place):
            label = label_or_none(bits, place)
            node = self._references.node_or_none(holder, f"{place}[{shown(bits)}]")
            if label is not None:
                shortcuts[label] = node
        return shortcuts

    def _silence(self, value: object, place: str) -> dict[NodeId, LivenessState]:
        return {
            self._references.node(node, place): _silence_state(state, f"{place}.{node}")
            for node, state in entries(value, place)
        }

    def _digests(self, value: object, place: str) -> dict[NodeId, int]:
        return {
            self._references.node(node, place): digest(total, f"{place}.{node}")
            for node, total in entries(value, place)
        }

    def channels(self, value: object, place: str) -> Iterator[Parcel]:
        """Yield the messages in flight, without messages about unusable references."""
        for number, parcel in enumerate(sequence(value, place)):
            here = f"{place}[{number}]"
            fields = _PARCEL.fields(parcel, here)
            to = self._references.node(fields["to"], f"{here}.to")
            message = self._messages.parse(fields["message"], f"{here}.message")
            if message is not None:
                yield Parcel(to, message)


def _parsed(fields: Mapping[str, Any], parsers: Mapping[str, Parser], place: str) -> dict[str, Any]:
    return {name: parsers[name](value, f"{place}.{name}") for name, value in fields.items()}


def _silence_state(value: object, place: str) -> LivenessState:
    match value:
        case [ticks, threshold, pending]:
            return LivenessState(
                integer(ticks, f"{place}[0]"),
                integer(threshold, f"{place}[1]"),
                flag(pending, f"{place}[2]"),
            )
        case _:
            raise expected("[ticks, threshold, pending]", value, place)
