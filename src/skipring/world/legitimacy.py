"""Legitimacy of a state, and the violations that prevent it (sections 1.1 and 5).

Legitimacy has layers, each based on the layers before it: database, labels, ring, shortcuts,
leaving members. A state in which all hold is explicitly legitimate; it is strictly legitimate if no
message in flight can disturb it. Complete publications are judged separately. Violations are
generated lazily, lowest layer first, so a yes-or-no check computes only the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label
from skipring.core.messages import (
    CARRIERS,
    CheckLabel,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import NodeId, Peer, TopicId, as_text
from skipring.core.retention.member import Retention
from skipring.core.roster import Roster, index_of
from skipring.core.topology import Chains, chains_around, line_and_wrap
from skipring.world.retained_rows import retention_faults, retention_of
from skipring.world.snapshot import (
    Parcel,
    SubscriberView,
    View,
    peers_in,
    publications_in,
)


class Layer(StrEnum):
    """Subject of a violation; later layers depend on earlier ones."""

    DATABASE = "L0"
    LABELS = "L1"
    RING = "L2"
    SHORTCUTS = "L3"
    LEAVERS = "L4"
    CHANNELS = "strict"
    LINKS = "LINK"  # live nodes only: connections between ring neighbours
    PROCESSES = "NODE"  # live nodes only: readiness, clones, disks
    PUBLICATIONS = "PUB"


LIVE_LAYERS = frozenset({Layer.LINKS, Layer.PROCESSES})  # never found in a simulation


class Violation(Struct, frozen=True):
    """Difference between a state and a legitimate state, in words."""

    layer: Layer
    text: str

    def __str__(self) -> str:
        """Format the violation for display."""
        return f"{self.layer}: {self.text}"


def violations(view: View) -> Iterator[Violation]:
    """Yield the violations of explicit legitimacy (L0 to L4), lowest layer first.

    Labels, ring and shortcuts are compared with the database after its repair.
    """
    yield from _database_violations(view)
    roster = repaired(view.roster)
    for judge in (_label_violations, _ring_violations, _shortcut_violations):
        for node, seen in view.subscribers.items():
            if seen.member:
                yield from judge(node, seen, roster)
    for node, seen in view.subscribers.items():
        if not seen.member:
            yield from _leaver_violations(node, seen)


def channel_violations(view: View) -> Iterator[Violation]:
    """Yield the messages in flight that can disturb a legitimate state (LEGIT_STRICT)."""
    roster = repaired(view.roster)
    for parcel in view.in_flight():
        if parcel.to in view.crashed:
            continue  # a crashed node invokes no action (section 3.3)
        fault = _disturbance(parcel, roster, view)
        if fault is not None:
            yield Violation(Layer.CHANNELS, f"in the channel of {parcel.to}: {fault}")


def publication_violations(view: View) -> Iterator[Violation]:
    """Yield each member with missing publications or a wrong trie (PUB)."""
    members = {node: seen for node, seen in view.subscribers.items() if seen.member}
    terms = {node: retention_of(seen) for node, seen in members.items()}
    if any(each is not None and len(each.charters) for each in terms.values()):
        yield from _retention_violations(view, members, terms)
        return
    # Treat equal roots as equal tries here; _stored_violations finds a wrong stored hash.
    keys_by_root = {
        trie.root(): frozenset(trie.keys())
        for trie in (seen.trie() for seen in view.subscribers.values() if seen.member)
        if len(trie)
    }
    known = frozenset[bytes]().union(*keys_by_root.values(), _ids_in_flight(view))
    if not known:
        return
    is_complete = True
    for node, seen in view.subscribers.items():
        if not seen.member:
            continue
        lacking = len(known) - len(keys_by_root.get(seen.trie().root(), ()))
        if lacking:
            is_complete = False
            yield _publications(f"{node} lacks {lacking} of {len(known)} publications")
    if is_complete:
        for node, seen in view.subscribers.items():
            if seen.member:
                yield from _stored_violations(node, seen, view.topic)


def _retention_violations(
    view: View,
    members: Mapping[NodeId, SubscriberView],
    known: Mapping[NodeId, Retention | None],
) -> Iterator[Violation]:
    """Yield the violations of a topic with a charter."""
    faults = list(retention_faults(members, known, list(view.in_flight()), view.topic))
    yield from map(_publications, faults)
    for node, seen in () if faults else members.items():
        yield from _stored_violations(node, seen, view.topic)


def _ids_in_flight(view: View) -> frozenset[bytes]:
    """Return the ids of the publications in flight to a member that it does not reject."""
    return frozenset(
        batch.id
        for parcel in view.in_flight()
        if type(parcel.message) in CARRIERS and _is_member(parcel.to, view)
        for batch in publications_in(parcel.message)
        if batch.is_genuine(view.topic) and _is_readable(batch)
    )


def _stored_violations(node: NodeId, seen: SubscriberView, topic: TopicId) -> Iterator[Violation]:
    """Yield ids and hashes that do not follow from their publications (T10 to T12)."""
    for prefix in seen.trie().wrong_digests():
        yield _publications(f"{node} has a wrong hash at {prefix}")
    publications = seen.batches()
    for batch in publications:
        name = f"{batch.publisher}'s publication {batch.first}"
        if not batch.is_genuine(topic):
            yield _publications(f"{node} has {name} under a wrong id")
        elif not _is_readable(batch):
            yield _publications(f"{node} has {name} with unreadable records")
    retention = retention_of(seen)
    returned = retention.quarantine.stored() if retention is not None else {}
    stored = {batch.id for batch in publications if batch.id not in returned}
    indexed = set(seen.trie().keys())
    if lost := len(indexed - stored):
        yield _publications(f"{node} has lost {lost} publications that its trie still has")
    if hidden := len(stored - indexed):
        yield _publications(f"{node} has {hidden} publications that its trie lacks")
    if misplaced := seen.misplaced() - lost:
        yield _publications(f"{node} has wrong offsets of {misplaced} publications")


def _is_readable(batch: RecordBatch) -> bool:
    try:
        batch.records()
    except ValueError:
        return False
    return True


def _publications(text: str) -> Violation:
    return Violation(Layer.PUBLICATIONS, text)


def census(view: View) -> Counter[Layer]:
    """Count the violations of each layer."""
    return Counter(
        violation.layer
        for judge in (violations, channel_violations, publication_violations)
        for violation in judge(view)
    )


def is_legitimate(view: View) -> bool:
    """Return True if the state is explicitly legitimate."""
    return next(violations(view), None) is None


def is_strictly_legitimate(view: View) -> bool:
    """Return True if the state is legitimate and no message in flight can disturb it."""
    return is_legitimate(view) and next(channel_violations(view), None) is None


def has_all_publications(view: View) -> bool:
    """Return True if every member holds every publication in a correct trie (PUB)."""
    return next(publication_violations(view), None) is None


def explicit_state(view: View) -> Hashable:
    """Return the explicit state as one value; closure means that this value does not change."""
    return (
        view.roster.database(),
        tuple(
            (node, v.member, v.label, v.left, v.right, v.ring, tuple(sorted(v.shortcuts.items())))
            for node, v in sorted(view.subscribers.items())
        ),
    )


def _database_violations(view: View) -> Iterator[Violation]:
    """Check L0: the database is exactly l(0..n-1), a bijection with the live members."""
    members = [node for node, seen in view.subscribers.items() if seen.member]
    roster = view.roster
    is_dense = not roster.is_loaded and len(roster) == len(members)
    if is_dense and all(member in roster for member in members):
        return  # the labels of a dense roster are correct by construction
    database = roster.database()
    for label, node in database:
        yield from _entry_violations(label, node, view, len(members))
    for label, count in Counter(label for label, _ in database).items():
        if count > 1:
            yield _database(f"label {label!r} occurs {count} times")
    places = Counter(node for _, node in database)
    for node, count in places.items():
        if node is not None and count > 1:
            yield _database(f"{node} is recorded {count} times")
    for member in members:
        if member not in places:
            yield _database(f"{member} is not recorded")


def _entry_violations(
    label: str, node: NodeId | None, view: View, members: int
) -> Iterator[Violation]:
    """Check conditions (i) and (iv) of section 3.1, and that the entry belongs to a member."""
    if node is None:
        yield _database(f"label {label!r} has no subscriber")
    elif node not in view.subscribers:
        yield _database(f"{node} under label {label!r} is not a live subscriber")
    elif not view.subscribers[node].member:
        yield _database(f"{node} under label {label!r} does not want to be a member")
    index = index_of(label)
    if index is None or index >= members:
        yield _database(f"label {label!r} is not among the first {members}")


def repaired(roster: Roster) -> Roster:
    """Return the database after its repair; the given roster does not change."""
    if not roster.is_loaded:
        return roster
    copy = Roster()
    copy.load(roster.database(), roster.cursor)
    copy.repair()
    return copy


def _database(text: str) -> Violation:
    return Violation(Layer.DATABASE, f"database: {text}")


def _label_violations(node: NodeId, seen: SubscriberView, roster: Roster) -> Iterator[Violation]:
    """Check L1: the label is the label in the database."""
    should = roster.label_of(node)
    if should is None:
        yield Violation(Layer.LABELS, f"{node} has label {as_text(seen.label)} and is not recorded")
    elif seen.label != should:
        yield Violation(
            Layer.LABELS,
            f"{node} has label {as_text(seen.label)}, should be {as_text(should)}",
        )


def _ring_violations(node: NodeId, seen: SubscriberView, roster: Roster) -> Iterator[Violation]:
    """Check L2: left, right and ring are the sorted neighbours, in label and id."""
    should = roster.configuration_of(node)
    left, right, ring = None, None, None
    if should.label is not None and should.pred is not None and should.succ is not None:
        left, right, ring = line_and_wrap(Peer(should.label, node), should.pred, should.succ)
    if seen.left != left:
        yield _wrong_edge(node, "left", seen.left, left)
    if seen.right != right:
        yield _wrong_edge(node, "right", seen.right, right)
    if seen.ring != ring:
        yield _wrong_edge(node, "ring", seen.ring, ring)


def _wrong_edge(node: NodeId, name: str, has: Peer | None, should: Peer | None) -> Violation:
    return Violation(Layer.RING, f"{node}.{name} is {as_text(has)}, should be {as_text(should)}")


def _shortcut_violations(node: NodeId, seen: SubscriberView, roster: Roster) -> Iterator[Violation]:
    """Check L3: the slots are the chain labels, and their holders are correct."""
    should = roster.configuration_of(node)
    slots: tuple[Label, ...] = ()
    if should.label is not None:
        pred, succ = (
            peer.label if peer is not None else None for peer in (should.pred, should.succ)
        )
        chains = chains_around(should.label, pred, succ)
        slots = chains.slots
        yield from _chain_violations(node, seen.chains, chains)
    wrong = f"{node} has a shortcut"
    for label in seen.shortcuts:
        if label not in slots:
            yield Violation(Layer.SHORTCUTS, f"{wrong} to {label}, which it should not have")
    for label in slots:
        holder = roster.nodes[label.index] if label.index < len(roster) else None
        if label not in seen.shortcuts:
            yield Violation(Layer.SHORTCUTS, f"{node} lacks its shortcut to {label}")
        elif seen.shortcuts[label] != holder:
            has = seen.shortcuts[label] or "no node"
            yield Violation(Layer.SHORTCUTS, f"{wrong} to {label} at {has}, should be at {holder}")


def _chain_violations(node: NodeId, has: Chains | None, should: Chains) -> Iterator[Violation]:
    """Check the cached chains if they belong to the correct labels; other chains are not used."""
    is_used = has is not None and (has.own, has.pred, has.succ) == (
        should.own,
        should.pred,
        should.succ,
    )
    if is_used and has != should:
        yield Violation(Layer.SHORTCUTS, f"{node} has wrong shortcut chains")


def _leaver_violations(node: NodeId, seen: SubscriberView) -> Iterator[Violation]:
    """Check L4: a node that does not want to be a member has no label and no references."""
    if seen.label is not None:
        yield Violation(Layer.LEAVERS, f"{node} is not a member and still has label {seen.label}")
    if any((seen.left, seen.right, seen.ring, *seen.shortcuts.values())):
        yield Violation(Layer.LEAVERS, f"{node} is not a member and still has references")


def _disturbance(parcel: Parcel, roster: Roster, view: View) -> str | None:
    """Return why a message in flight disturbs the state, or None if it does not."""
    message, name = parcel.message, type(parcel.message).__name__
    match message:
        case SetConfiguration():
            is_current = message == roster.configuration_of(parcel.to)
            return None if is_current else "an outdated SetConfiguration"
        case RemoveConnections() | Unsubscribe():
            return f"{name} of {message.node}"
        case Subscribe(node=node) if node is not None and not _is_member(node, view):
            # The supervisor would record a node that has to leave again, which breaks closure.
            return f"Subscribe of {node}, which is not a member"
        case CheckLabel(believed=believed) if roster.label_of(parcel.to) != believed:
            return f"CheckLabel with the wrong receiver label {as_text(believed)}"
    wrong = [peer for peer in peers_in(message) if roster.label_of(peer.node) != peer.label]
    return f"{name} with the wrong pair {as_text(wrong[0])}" if wrong else None


def _is_member(node: NodeId, view: View) -> bool:
    return node in view.subscribers and view.subscribers[node].member
