"""Plans of fault injection: the damage to each process that puts a live topic into a wrong state.

The nodes of an adversary's world get the names of live nodes, and each live node gets its state. A
crashed node of that world becomes a name without a process. A plan only describes the damage; the
process that applies it may be local or remote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from skipring.admin.inspector import ring_state
from skipring.core.messages import CARRIERS, Message
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.state import SubscriberState, SupervisorState
from skipring.errors import InputError, MessageError
from skipring.wire.chaos import (
    CorruptTrie,
    Crash,
    Damage,
    Forge,
    Isolate,
    Overwrite,
    OverwriteDatabase,
)
from skipring.wire.codec import encode
from skipring.wire.limits import FORGED_BYTES_MAX
from skipring.wire.rpc import NodeStatus
from skipring.world.adversaries import ADVERSARIES, Adversary
from skipring.world.adversaries.arbitrary import Arbitrary
from skipring.world.snapshot import Snapshot

SHARE: Final = 0.5  # default share of lost publications
IDS_PER_DIGEST: Final = 8  # a trie has a digest for about this number of publications

Damages: TypeAlias = dict[NodeId, list[Damage]]  # in this order; the supervisor under its name
Statuses: TypeAlias = Mapping[NodeId, NodeStatus]
Renamed = TypeVar("Renamed", bound=Damage | Message)


# -- arguments of an operator --------------------------------------------------------------


def check_adversary(code: str) -> None:
    """Raise InputError for a code that is not in the catalog."""
    if code not in ADVERSARIES:
        raise InputError(f"unknown adversary {code}; the adversaries are {', '.join(ADVERSARIES)}")


def check_names(names: Iterable[NodeId], members: Iterable[NodeId]) -> None:
    """Raise InputError for names that are neither members nor the supervisor."""
    known = {*members, SUPERVISOR}
    for name in names:
        if name not in known:
            raise InputError(f"the topic has no live node {name}; skipring ring lists the nodes")


# -- plans -----------------------------------------------------------------------------------


def adversarial(code: str, topic: TopicId, members: Statuses, seed: int) -> Damages:
    """Put a topic into an initial state of the catalog.

    The plan does not use the publications of that world, because it must not invent any: instead
    existing publications are lost and their hashes become wrong. It also ignores which nodes want
    to leave.
    """
    check_adversary(code)
    world = _world(ADVERSARIES[code], len(members), Random(f"{code}/{seed}"))
    names = _names(world, members)
    damages: Damages = {SUPERVISOR: [_renamed(_overwritten_database(world.supervisor), names)]}
    for node, state in world.subscribers.items():
        damages[names[node]] = [_renamed(_overwritten(state), names)]
    if any(state.publications for state in world.subscribers.values()):
        is_hashed = any(state.hashes for state in world.subscribers.values())
        _add(damages, spoilt_tries(members, SHARE, seed, is_hashed=is_hashed))
    _add(damages, _forged(topic, world, names))
    return damages


def wrong_database(members: Iterable[NodeId], seed: int) -> Damages:
    """Put arbitrary entries into the supervisor's database, and an arbitrary queue."""
    drawn = Arbitrary(Random(seed), sorted(members)).supervisor()
    return {SUPERVISOR: [_overwritten_database(drawn)]}


def no_database() -> Damages:
    """Empty the supervisor's database."""
    return {SUPERVISOR: [_overwritten_database(SupervisorState())]}


def wrong_labels(members: Statuses, seed: int) -> Damages:
    """Give each member an arbitrary label and keep all other variables."""
    draw = Arbitrary(Random(seed), sorted(members))
    return {
        node: [_overwritten(replace(ring_state(status), label=draw.label()))]
        for node, status in sorted(members.items())
    }


def spoilt_tries(members: Statuses, share: float, seed: int, *, is_hashed: bool = True) -> Damages:
    """Set wrong hashes at each member, and delete a share of its publications.

    No publication is lost permanently: the first member keeps everything, and only members with the
    same root as it lose publications.
    """
    keeper = min(members)
    return {
        node: [
            CorruptTrie(
                request=0,
                hashes=1 + int(share * status.count / IDS_PER_DIGEST) if is_hashed else 0,
                publications=int(share * status.count)
                if node != keeper and status.root == members[keeper].root
                else 0,
                seed=seed,
            )
        ]
        for node, status in sorted(members.items())
    }


def partition(groups: Iterable[Iterable[NodeId]], ticks: int) -> Damages:
    """Cut each node off from all nodes of other groups.

    A node in no group keeps all its connections; so does the supervisor, unless it is in a group.
    """
    sides = [frozenset(group) for group in groups]
    named = frozenset[NodeId]().union(*sides)
    if sum(map(len, sides)) != len(named):
        raise InputError("a node is in two groups; it can only be on one side of a partition")
    return {
        node: [Isolate(0, tuple(sorted(named - side)), ticks)]
        for side in sides
        for node in sorted(side)
        if node != SUPERVISOR
    }


def healed(members: Iterable[NodeId]) -> Damages:
    """End every partition."""
    return {node: [Isolate(0, (), 0)] for node in sorted(members)}


def killed(nodes: Iterable[NodeId]) -> Damages:
    """Kill processes at once."""
    return {node: [Crash(0)] for node in sorted(nodes)}


def parts_of(members: Iterable[NodeId], parts: int, seed: int) -> list[list[NodeId]]:
    """Return ``parts`` random groups of about the same size."""
    nodes = sorted(members)
    Random(seed).shuffle(nodes)
    return [sorted(nodes[start::parts]) for start in range(parts)]


def share_of(members: Iterable[NodeId], share: float, seed: int) -> list[NodeId]:
    """Return a random share of the nodes, at least one."""
    nodes = sorted(members)
    return sorted(Random(seed).sample(nodes, max(1, round(share * len(nodes)))))


def words(damage: Damage) -> str:
    """Describe the damage to one process, for display."""
    match damage:
        case Overwrite(label=label):
            return f"variables overwritten, label {label.bits if label is not None else 'none'}"
        case OverwriteDatabase(database=database):
            return f"database overwritten with {len(database)} entries"
        case CorruptTrie(hashes=hashes, publications=lost):
            return f"up to {hashes} digests wrong, {lost} publications lost"
        case Forge(frames=frames):
            return f"{len(frames)} bytes of forged messages"
        case Isolate(nodes=nodes, ticks=ticks):
            return f"cut off from {', '.join(nodes)} for {ticks} ticks" if nodes else "healed"
        case _:
            return "killed"


# -- an adversary's world ----------------------------------------------------------------------


def _world(adversary: Adversary, count: int, rng: Random) -> Snapshot:
    """Return a world with ``count`` live subscribers, not counting crashed ones."""
    state = rng.getstate()
    for n in range(count, 2 * count + 2):
        rng.setstate(state)
        world = adversary.build(n, rng)
        if len(world.subscribers) == count:
            return world
    raise AssertionError(f"{adversary.code} has no world with {count} live nodes")


def _names(world: Snapshot, members: Iterable[NodeId]) -> dict[NodeId, NodeId]:
    """Map each node of a world to a live node, or to a ghost if it has crashed."""
    live = sorted(members)
    names = dict(zip(sorted(world.subscribers), live, strict=True))
    ghosts = (name for number in range(10**9) if (name := f"ghost-{number}") not in names.values())
    return names | dict(zip(sorted(world.crashed), ghosts, strict=False))


def _overwritten(state: SubscriberState) -> Overwrite:
    return Overwrite(
        request=0,
        label=state.label,
        left=state.left,
        right=state.right,
        ring=state.ring,
        shortcuts=tuple(state.shortcuts.items()),
        silence=state.silence,
        digests=state.digests,
    )


def _overwritten_database(state: SupervisorState) -> OverwriteDatabase:
    return OverwriteDatabase(0, state.database, state.next, state.queue)


def _renamed(message: Renamed, names: Mapping[NodeId, NodeId]) -> Renamed:
    """Return the same message about other nodes; raise MessageError for a value out of range."""
    plain = to_builtins(message, builtin_types=(bytes,))
    try:
        return convert(_replaced(plain, names), type(message))
    except ValidationError as error:
        raise MessageError(f"{type(message).__name__}: {error}") from None


def _replaced(plain: Any, names: Mapping[NodeId, NodeId]) -> Any:  # noqa: ANN401
    """Replace names in a value of lists, maps and texts; no other text is a name."""
    match plain:
        case str():
            return names.get(plain, plain)
        case dict():
            return {names.get(key, key): _replaced(value, names) for key, value in plain.items()}
        case list() | tuple():
            return [_replaced(each, names) for each in plain]
        case _:
            return plain


def _forged(topic: TopicId, world: Snapshot, names: Mapping[NodeId, NodeId]) -> Damages:
    """Return the messages in the channels of a world as damage, without publications."""
    frames: dict[NodeId, list[bytes]] = {}
    for parcel in world.channels:
        if type(parcel.message) in CARRIERS:
            continue
        try:
            frame = encode(topic, _renamed(parcel.message, names))
        except MessageError:
            continue  # no node could have received it
        frames.setdefault(names.get(parcel.to, parcel.to), []).append(frame)
    return {to: [Forge(0, data) for data in _joined(each)] for to, each in frames.items()}


def _joined(frames: Sequence[bytes]) -> Iterable[bytes]:
    """Concatenate frames into pieces of limited length."""
    piece = b""
    for frame in frames:
        if len(piece) + len(frame) > FORGED_BYTES_MAX:
            yield piece
            piece = b""
        piece += frame
    yield piece


def _add(damages: Damages, more: Damages) -> None:
    for node, each in more.items():
        damages.setdefault(node, []).extend(each)


def numbered(damage: Damage, request: int) -> Damage:
    """Return the damage as a request with this number."""
    return replace(damage, request=request)
