"""Adversaries: each initial state matches its title, for every number of subscribers."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from skipring.core.batches import RecordBatch
from skipring.core.labels import CIRCLE, HALF_CIRCLE, LABEL_BITS, Label
from skipring.core.messages import (
    MESSAGE_TYPES,
    UNRECORDED,
    GetConfiguration,
    Introduce,
    Message,
    Publications,
    PublishNew,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.prefix import ALL
from skipring.core.roster import Roster
from skipring.core.state import (
    LivenessState,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    legitimate_state,
)
from skipring.core.topology import chains_around
from skipring.world.adversaries import ADVERSARIES, legitimate_world, scatter
from skipring.world.adversaries.arbitrary import MESSAGES
from skipring.world.legitimacy import Layer, channel_violations, is_legitimate, violations
from skipring.world.snapshot import Snapshot, peers_in, publications_in

RETAINED = tuple(f"A5{digit}" for digit in range(8))  # topics with a charter
CODES = (
    *(f"A0{digit}" for digit in range(10)),
    *("A09b", "A10", "A11", "A12", "A13", "A14", "A15", "A16", "A17", "A18", "A18b", "A19"),
    *("A20", "A21", "A22", "A30", "A31", "A32", "A36", "A37", "A41", "A42", "A43", "A44"),
    *("A45", "A46", "A47", *RETAINED, "A60", "A61", "A62", "A63", "A64", "A65", "A66"),
)
SIZES = (1, 2, 3, 5, 17, 64)
LARGE = (17, 64)

# The number of subscribers from which a state is illegitimate; below, it cannot be built.
ILLEGITIMATE_FROM = dict.fromkeys(("A06", "A10", "A11", "A20", "A32", "A36", "A43", "A44"), 2) | {
    "A41": 5,
    "A42": 5,
    "A45": 2,
    "A60": 2,
    "A61": 2,
    "A62": 2,
}
# Only channels, publications or the memory of machines are wrong.
LEGITIMATE = ("A13", "A19", "A47", *RETAINED, "A64", "A65")

every_code = pytest.mark.parametrize("code", CODES)
every_size = pytest.mark.parametrize("n", SIZES)
two_or_more = pytest.mark.parametrize("n", SIZES[1:])
every_large_size = pytest.mark.parametrize("n", LARGE)


def build(code: str, n: int, seed: int = 1) -> Snapshot:
    return ADVERSARIES[code].build(n, Random(f"{code}/{n}/{seed}"))


@cache
def world(code: str, n: int) -> Snapshot:
    return build(code, n)


@cache
def layers(code: str, n: int) -> frozenset[Layer]:
    return frozenset(violation.layer for violation in violations(world(code, n)))


def edges(state: SubscriberState) -> tuple[Peer | None, Peer | None, Peer | None]:
    return state.left, state.right, state.ring


def references(state: SubscriberState) -> Iterator[NodeId]:
    yield from (peer.node for peer in edges(state) if peer is not None)
    yield from (holder for holder in state.shortcuts.values() if holder is not None)


def named_in(message: Message) -> Iterator[NodeId | None]:
    yield from (peer.node for peer in peers_in(message))
    yield getattr(message, "node", None)
    sender = getattr(message, "sender", None)
    yield sender if isinstance(sender, str) else None
    yield from (publication.publisher for publication in publications_in(message))


def recorded(snapshot: Snapshot) -> list[NodeId | None]:
    return [node for _, node in snapshot.supervisor.database]


def labels_of(snapshot: Snapshot) -> dict[NodeId, Label | None]:
    return {node: state.label for node, state in snapshot.subscribers.items()}


def is_sorted_ring(snapshot: Snapshot, nodes: list[NodeId]) -> bool:
    """Return True if these nodes, by their own labels, form the ring of BuildRing."""
    line = sorted(Peer(label, node) for node in nodes if (label := labels_of(snapshot)[node]))
    if len(line) != len(nodes):
        return False
    ends = {line[0]: line[-1], line[-1]: line[0]} if len(line) > 1 else {}
    for before, own, after in zip([None, *line], line, [*line[1:], None], strict=False):
        if edges(snapshot.subscribers[own.node]) != (before, after, ends.get(own)):
            return False
    return True


# -- the table -------------------------------------------------------------------------------


def test_catalogue_is_complete_and_in_order() -> None:
    assert tuple(ADVERSARIES) == CODES
    assert all(adversary.code == code for code, adversary in ADVERSARIES.items())
    assert len({adversary.title for adversary in ADVERSARIES.values()}) == len(CODES)


def test_only_a46_keeps_crashing() -> None:
    rounds = {code: a.crash_rounds for code, a in ADVERSARIES.items() if a.crash_rounds}
    assert rounds == {"A46": (2, 4, 6, 8)}


# -- properties of all adversaries -----------------------------------------------------------


@every_code
@every_size
def test_every_referenced_node_is_declared(code: str, n: int) -> None:
    snapshot = world(code, n)
    known = {None, *snapshot.subscribers, *snapshot.crashed}
    supervisor = snapshot.supervisor
    assert known.issuperset([*recorded(snapshot), *supervisor.queue])
    for state in snapshot.subscribers.values():
        inwards = {SUPERVISOR} if code == "A21" else set()
        assert (known | inwards).issuperset(references(state))
        assert known.issuperset([*state.silence, *state.digests])
        assert known.issuperset(publication.publisher for publication in state.publications)
    for parcel in snapshot.channels:
        assert parcel.to in known | {SUPERVISOR}
        assert (known | {SUPERVISOR}).issuperset(named_in(parcel.message))


@every_code
@every_size
def test_number_of_live_members_is_n(code: str, n: int) -> None:
    snapshot = world(code, n)
    members = [node for node, state in snapshot.subscribers.items() if state.member]
    missing = {"A36": len(snapshot.crashed), "A45": len(snapshot.subscribers) - len(members)}
    assert len(members) + missing.get(code, 0) == n
    assert not set(snapshot.crashed) & set(snapshot.subscribers)
    assert bool(snapshot.crashed) == (code in {"A17", "A18", "A18b"} or (code == "A36" and n > 1))


@every_code
@every_size
def test_order_of_ids_is_the_order_of_numbers(code: str, n: int) -> None:
    snapshot = world(code, n)
    nodes = sorted([*snapshot.subscribers, *snapshot.crashed])
    assert nodes == [f"n{number:04}" for number in range(len(nodes))]
    assert list(snapshot.subscribers) == sorted(snapshot.subscribers)


@every_code
@every_size
def test_same_seed_builds_the_same_state(code: str, n: int) -> None:
    assert build(code, n) == world(code, n)


@pytest.mark.parametrize("code", [code for code in CODES if code != "A00"])
def test_other_seed_builds_another_state(code: str) -> None:
    assert build(code, 64, seed=2) != world(code, 64)


def test_no_state_depends_on_the_hash_seed() -> None:
    program = (
        "from hashlib import blake2b; from random import Random\n"
        "from skipring.world.adversaries import ADVERSARIES\n"
        "states = [a.build(17, Random(code)) for code, a in ADVERSARIES.items()]\n"
        "print(blake2b(repr(states).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("code", [code for code in CODES if code not in LEGITIMATE])
@every_size
def test_state_is_not_legitimate_unless_it_is_too_small(code: str, n: int) -> None:
    assert bool(layers(code, n)) == (n >= ILLEGITIMATE_FROM.get(code, 1))


@pytest.mark.parametrize("code", LEGITIMATE)
@every_size
def test_state_is_explicitly_legitimate(code: str, n: int) -> None:
    assert is_legitimate(world(code, n))


@pytest.mark.parametrize(
    ("code", "layer"),
    [("A10", Layer.RING), ("A11", Layer.RING), ("A12", Layer.SHORTCUTS), ("A20", Layer.RING)],
)
@two_or_more
def test_only_one_layer_is_wrong(code: str, layer: Layer, n: int) -> None:
    assert layers(code, n) == {layer}


@pytest.mark.parametrize("code", ["A06", "A32", "A43"])
@two_or_more
def test_database_is_right_and_labels_are_wrong(code: str, n: int) -> None:
    assert Layer.DATABASE not in layers(code, n)
    assert Layer.LABELS in layers(code, n)


@pytest.mark.parametrize(
    "code", ["A01", "A02", "A03", "A04", "A05", "A06", "A31", "A32", "A37", "A43"]
)
@every_size
def test_subscribers_form_a_correct_ring_whatever_the_database_says(code: str, n: int) -> None:
    snapshot = world(code, n)
    nodes = sorted(snapshot.subscribers, key=lambda node: snapshot.subscribers[node].label.index)
    for index, node in enumerate(nodes):
        assert snapshot.subscribers[node] == legitimate_state(index, nodes)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 100])
def test_legitimate_world_is_legitimate(n: int) -> None:
    snapshot = legitimate_world(n, Random(f"{n}"))
    assert list(violations(snapshot)) == []
    assert snapshot.channels == snapshot.crashed == ()


# -- the database ----------------------------------------------------------------------------


@every_size
def test_a00_has_no_references(n: int) -> None:
    snapshot = world("A00", n)
    assert recorded(snapshot) == []
    assert set(map(repr, snapshot.subscribers.values())) == {repr(SubscriberState())}


@every_size
def test_a01_has_entries_without_a_subscriber(n: int) -> None:
    assert recorded(world("A01", n)).count(None) == max(1, n // 3)
    assert len(recorded(world("A01", n))) == n


@every_size
def test_a02_records_a_subscriber_twice(n: int) -> None:
    assert max(Counter(recorded(world("A02", n))).values()) > 1


@every_size
def test_a03_lacks_labels(n: int) -> None:
    database = world("A03", n).supervisor.database
    assert len(database) == n - max(1, n // 3)
    present = {Label.parse(bits).index for bits, _ in database}
    assert n == 1 or present != set(range(len(database)))


@every_size
def test_a04_has_large_long_and_noncanonical_labels(n: int) -> None:
    database = world("A04", n).supervisor.database
    assert sorted(map(str, recorded(world("A04", n)))) == list(world("A04", n).subscribers)
    large = [bits for bits, _ in database[::3]]
    assert all(Label.parse(bits).index >= n for bits in large)
    assert all(len(bits) == 40 for bits, _ in database[1::3])
    for bits, _ in database[2::3]:
        with pytest.raises(ValueError, match="not a label"):
            Label.parse(bits)


@every_size
def test_a05_has_lost_the_database_of_labelled_subscribers(n: int) -> None:
    assert recorded(world("A05", n)) == []
    assert None not in labels_of(world("A05", n)).values()


@every_size
def test_a32_records_every_member_one_index_too_low(n: int) -> None:
    snapshot = world("A32", n)
    for index, node in enumerate(recorded(snapshot)):
        label = labels_of(snapshot)[node]
        assert label.index == (index + 1) % n


@pytest.mark.parametrize(("code", "one_in"), [("A31", 8), ("A37", 4)])
@every_size
def test_evicted_members_still_hold_their_labels(code: str, one_in: int, n: int) -> None:
    snapshot = world(code, n)
    assert len(set(recorded(snapshot))) == n - max(1, n // one_in)
    indices = [Label.parse(bits).index for bits, _ in snapshot.supervisor.database]
    assert indices == list(range(len(indices)))


def replaced(snapshot: Snapshot) -> list[tuple[NodeId, NodeId]]:
    """Return each unrecorded member and the recorded owner of its label, in ring order."""
    holder = {Label.parse(bits): node for bits, node in snapshot.supervisor.database}
    ghosts = sorted(
        (label, node)
        for node, label in labels_of(snapshot).items()
        if label is not None and node not in recorded(snapshot)
    )
    return [(node, holder[label]) for label, node in ghosts]


@pytest.mark.parametrize(
    ("code", "n", "count"),
    [
        *[("A41", n, 0) for n in (1, 2, 3, 4)],
        *[("A41", 5, 1), ("A41", 8, 1), ("A41", 9, 3)],
        *[("A41", n, 3) for n in LARGE],
        *[
            ("A42", 4, 0),
            ("A42", 5, 1),
            ("A42", 9, 3),
            ("A42", 16, 3),
            ("A42", 17, 5),
            ("A42", 64, 5),
        ],
    ],
)
def test_number_of_replaced_adjacent_members_is_the_largest_that_fits(
    code: str, n: int, count: int
) -> None:
    snapshot = world(code, n)
    pairs = replaced(snapshot)
    assert len(pairs) == count
    assert len(snapshot.supervisor.database) == n - count
    for _, newcomer in pairs:
        assert snapshot.subscribers[newcomer] == SubscriberState()
        assert all(newcomer not in references(state) for state in snapshot.subscribers.values())
    for (ghost, _), (after, _) in pairwise(pairs):
        assert snapshot.subscribers[ghost].right.node == after


@pytest.mark.parametrize(
    ("code", "n"), [(code, n) for code in ("A41", "A42") for n in (9, 13, 16, 17, 33, 64, 67)]
)
@pytest.mark.parametrize("seed", range(5))
def test_replaced_segment_is_invisible_to_its_outer_neighbours(
    code: str, n: int, seed: int
) -> None:
    snapshot = build(code, n, seed)
    pairs = replaced(snapshot)
    (first, first_replacement), (last, last_replacement) = pairs[0], pairs[-1]
    assert first < first_replacement
    assert last > last_replacement
    for outer in (snapshot.subscribers[first].left, snapshot.subscribers[last].right):
        assert outer.node in recorded(snapshot)
        assert snapshot.subscribers[outer.node].shortcuts == {}


@two_or_more
def test_a43_swaps_two_entries(n: int) -> None:
    snapshot = world("A43", n)
    wrong = [
        (node, bits)
        for bits, node in snapshot.supervisor.database
        if snapshot.subscribers[node].label.bits != bits
    ]
    (one, bits_of_one), (other, bits_of_other) = wrong
    assert snapshot.subscribers[one].label.bits == bits_of_other
    assert snapshot.subscribers[other].label.bits == bits_of_one


@every_size
def test_a44_has_a_huge_next_and_violations(n: int) -> None:
    assert world("A44", n).supervisor.next > 10**18
    assert n == 1 or layers("A44", n)


# -- labels and references -------------------------------------------------------------------


@every_size
def test_a07_has_one_sorted_ring_of_unrecorded_long_labels(n: int) -> None:
    snapshot = world("A07", n)
    assert recorded(snapshot) == []
    assert {label.length for label in labels_of(snapshot).values()} == {60}
    assert is_sorted_ring(snapshot, list(snapshot.subscribers))


def components(snapshot: Snapshot) -> list[list[NodeId]]:
    """Return the components of nodes that are connected by any references."""
    home = {node: [node] for node in snapshot.subscribers}
    for one, other in snapshot.explicit_edges():
        if home[one] is not home[other]:
            home[one].extend(home[other])
            for node in home[other]:
                home[node] = home[one]
    return list({id(group): group for group in home.values()}.values())


@every_size
def test_a08_has_many_sorted_rings_of_unrecorded_long_labels(n: int) -> None:
    snapshot = world("A08", n)
    assert recorded(snapshot) == []
    assert {label.length for label in labels_of(snapshot).values()} == {60}
    groups = components(snapshot)
    assert len(groups) == max(1, n // 4)
    assert all(is_sorted_ring(snapshot, group) for group in groups)


@pytest.mark.parametrize("code", ["A09", "A09b", "A30"])
@two_or_more
def test_two_rings_have_equal_labels_and_one_is_recorded(code: str, n: int) -> None:
    snapshot = world(code, n)
    labels = labels_of(snapshot)
    known = recorded(snapshot)
    twins = [node for node, label in labels.items() if label and node not in known]
    assert len(known) == len(twins) == n // 2
    assert {labels[node] for node in known} == {labels[node] for node in twins}
    assert is_sorted_ring(snapshot, known)
    assert is_sorted_ring(snapshot, twins)
    assert max(known) < min(twins) if code == "A09" else max(twins) < min(known)
    assert len(components(snapshot)) == 2 + n % 2


@every_large_size
def test_only_a30_has_shortcuts_in_both_rings(n: int) -> None:
    assert not any(state.shortcuts for state in world("A09", n).subscribers.values())
    snapshot = world("A30", n)
    labels = labels_of(snapshot)
    for ring in (recorded(snapshot), [n for n in labels if n not in recorded(snapshot)]):
        nodes = sorted((node for node in ring if labels[node]), key=lambda v: labels[v].index)
        for index, node in enumerate(nodes):
            assert snapshot.subscribers[node] == legitimate_state(index, nodes)


@two_or_more
def test_a10_has_wrong_labels_and_right_ids(n: int) -> None:
    snapshot = world("A10", n)
    labels = labels_of(snapshot)
    right = dict(zip(recorded(snapshot), range(n), strict=True))
    for node, state in snapshot.subscribers.items():
        true = legitimate_state(right[node], recorded(snapshot))
        pairs = list(zip(edges(state), edges(true), strict=True))
        assert all((has and has.node) == (should and should.node) for has, should in pairs)
        assert any(peer is not None and peer.label != labels[peer.node] for peer in edges(state))


@two_or_more
def test_a11_permutes_the_edges_of_all_members(n: int) -> None:
    nodes = recorded(world("A11", n))
    for index, node in enumerate(nodes):
        has = edges(world("A11", n).subscribers[node])
        should = edges(legitimate_state(index, nodes))
        assert has != should
        assert Counter(has) == Counter(should)


@every_size
def test_a12_has_shortcuts_that_no_ring_of_this_size_has(n: int) -> None:
    for state in world("A12", n).subscribers.values():
        assert any(label.index >= n for label in state.shortcuts)


@two_or_more
def test_a20_reverses_the_ring(n: int) -> None:
    nodes = recorded(world("A20", n))
    for index, node in enumerate(nodes):
        left, right, ring = edges(legitimate_state(index, nodes))
        assert edges(world("A20", n).subscribers[node]) == (right, left, ring)


@every_size
def test_a21_knows_only_itself_and_the_supervisor(n: int) -> None:
    for node, state in world("A21", n).subscribers.items():
        assert set(references(state)) <= {node, SUPERVISOR}
        assert None not in edges(state)


@every_size
def test_a22_links_pairs_by_ring_only(n: int) -> None:
    subscribers = world("A22", n).subscribers
    assert recorded(world("A22", n)) == []
    single = [node for node, state in subscribers.items() if state.ring is None]
    assert len(single) == n % 2
    for node, state in subscribers.items():
        assert state.left is state.right is None
        assert state.shortcuts == {}
        if state.ring is not None:
            partner = subscribers[state.ring.node]
            assert partner.label == state.ring.label
            assert partner.ring == Peer(state.label, node)


# -- arbitrary values ------------------------------------------------------------------------


def test_every_message_can_be_forged() -> None:
    assert tuple(MESSAGES) == MESSAGE_TYPES


@pytest.mark.parametrize(("code", "per_node"), [("A13", 6), ("A15", 4), ("A16", 4), ("A17", 4)])
@every_size
def test_channels_contain_messages_of_every_type(code: str, per_node: int, n: int) -> None:
    messages = [parcel.message for parcel in world(code, n).channels]
    assert len(messages) == per_node * n
    types = {type(message) for message in messages}
    # Without publications, none can be in flight as new.
    forged = len(MESSAGE_TYPES) if code == "A13" else len(MESSAGE_TYPES) - 1
    assert len(types) == min(per_node * n, forged)


def test_a13_forges_messages_in_all_their_forms() -> None:
    parcels = world("A13", 256).channels
    requests = {
        (type(parcel.message), parcel.message.node)
        for parcel in parcels
        if isinstance(parcel.message, Subscribe | Unsubscribe | GetConfiguration)
    }
    for kind in (Subscribe, Unsubscribe, GetConfiguration):
        assert {(kind, None), (kind, SUPERVISOR)} < requests
    messages = [parcel.message for parcel in parcels]
    labels = [m.label is None for m in messages if isinstance(m, SetConfiguration)]
    first_hand = [m.first_hand for m in messages if isinstance(m, Introduce)]
    digests = [m.digest is None for m in messages if isinstance(m, GetConfiguration)]
    assert set(labels) == set(first_hand) == set(digests) == {True, False}
    at_supervisor = {type(p.message) for p in parcels if p.to == SUPERVISOR}
    assert len(at_supervisor) > 3
    assert any(isinstance(p.message, Subscribe) and p.to != SUPERVISOR for p in parcels)


@two_or_more
def test_a13_is_not_strictly_legitimate(n: int) -> None:
    assert next(channel_violations(world("A13", n)), None) is not None


@every_size
def test_a14_has_one_label_for_all_and_all_references_contain_it(n: int) -> None:
    snapshot = world("A14", n)
    (label,) = set(labels_of(snapshot).values())
    for state in snapshot.subscribers.values():
        assert all(peer is None or peer.label == label for peer in edges(state))


@pytest.mark.parametrize("code", ["A15", "A16", "A17", "A46"])
@every_large_size
def test_every_variable_differs_from_its_default(code: str, n: int) -> None:
    snapshot = world(code, n)
    assert snapshot.supervisor.next
    assert snapshot.supervisor.queue or n < 64
    states = snapshot.subscribers.values()
    for name in ("label", "left", "right", "ring", *("shortcuts", "silence", "digests")):
        assert any(getattr(state, name) for state in states), name


@every_large_size
def test_labels_are_a_little_too_long_in_a15_and_up_to_64_bits_in_a16(n: int) -> None:
    def longest(code: str) -> int:
        return max(label.length for label in labels_of(world(code, n)).values() if label)

    assert longest("A15") <= n.bit_length() + 2
    assert 32 < longest("A16") <= LABEL_BITS


# -- crashed, leaving ------------------------------------------------------------------------


def test_a17_refers_to_crashed_nodes_with_a_quarter_of_its_references() -> None:
    snapshot = world("A17", 512)
    named = [node for state in snapshot.subscribers.values() for node in references(state)]
    dead = sum(node in snapshot.crashed for node in named)
    assert 0.2 < dead / len(named) < 0.3
    assert set(snapshot.crashed) & set(recorded(snapshot))


@pytest.mark.parametrize("code", ["A18", "A18b"])
@every_size
def test_unrecorded_nodes_have_long_labels_and_a_dead_left_neighbour(code: str, n: int) -> None:
    snapshot = world(code, n)
    assert recorded(snapshot) == []
    known = [node for state in snapshot.subscribers.values() for node in references(state)]
    assert sorted(known) == sorted(snapshot.crashed)
    for state in snapshot.subscribers.values():
        assert state.label.length == 61
        assert state.label.position > HALF_CIRCLE
        assert state.left.label < state.label


@every_size
def test_a18b_has_a_corrupted_silence_threshold(n: int) -> None:
    for plain, corrupted in zip(
        world("A18", n).subscribers.values(), world("A18b", n).subscribers.values(), strict=True
    ):
        assert plain.silence == {}
        assert corrupted.silence == {corrupted.left.node: LivenessState(0, 1024, pending=False)}


@two_or_more
def test_a36_has_a_crashed_quarter_that_the_others_refer_to(n: int) -> None:
    snapshot = world("A36", n)
    assert len(snapshot.crashed) == max(1, n // 4)
    assert sorted(recorded(snapshot)) == sorted([*snapshot.subscribers, *snapshot.crashed])
    named = {node for state in snapshot.subscribers.values() for node in references(state)}
    assert named & set(snapshot.crashed)
    nodes = recorded(snapshot)
    for node, state in snapshot.subscribers.items():
        assert state == legitimate_state(nodes.index(node), nodes)


@two_or_more
def test_a45_permits_departures_of_leavers_that_are_still_recorded(n: int) -> None:
    snapshot = world("A45", n)
    leavers = [node for node, state in snapshot.subscribers.items() if not state.member]
    gone = [node for node in leavers if snapshot.subscribers[node].label is None]
    assert len(leavers) == max(1, n // 4)
    assert len(gone) == (len(leavers) + 1) // 2
    assert sorted(recorded(snapshot)) == list(snapshot.subscribers)
    named = {node for state in snapshot.subscribers.values() for node in references(state)}
    for node in gone:
        assert list(references(snapshot.subscribers[node])) == []
        assert node in named or len(gone) > 1  # its neighbours may have left as well


@every_size
def test_a45_forges_permissions_for_all_other_leavers_and_some_members(n: int) -> None:
    snapshot = world("A45", n)
    going = {n for n, s in snapshot.subscribers.items() if not s.member and s.label is not None}
    granted = [parcel.to for parcel in snapshot.channels]
    assert {parcel.message for parcel in snapshot.channels} == {UNRECORDED}
    assert going < set(granted)
    assert any(snapshot.subscribers[node].member for node in granted)


# -- publications ----------------------------------------------------------------------------


@two_or_more
def test_a19_scatters_publications(n: int) -> None:
    held = [state.publications for state in world("A19", n).subscribers.values()]
    assert len({frozenset(p.first for p in publications) for publications in held}) > 1
    for publications in held:
        assert len({p.first for p in publications}) == len(publications)


@every_size
def test_every_publication_of_a19_is_stored_under_its_id(n: int) -> None:
    snapshot = world("A19", n)
    for state in snapshot.subscribers.values():
        assert all(row.id == row.id_in(snapshot.topic) for row in state.publications)
        assert state.hashes == {}


@every_size
def test_a47_makes_all_tries_look_equal(n: int) -> None:
    states = world("A47", n).subscribers.values()
    assert len({state.trie().root() for state in states}) == 1
    assert all(ALL in state.hashes for state in states)
    for state in states:
        assert state.trie().wrong_digests() == state.hashes  # each is kept by the trie, and wrong


def is_readable(batch: RecordBatch) -> bool:
    try:
        return len(batch.records()) == batch.count
    except ValueError:
        return False


@two_or_more
def test_publications_that_a47_corrupts_are_right_at_another_member(n: int) -> None:
    snapshot = world("A47", n)
    rows = [row for state in snapshot.subscribers.values() for row in state.publications]
    found = {(row.is_genuine(snapshot.topic), is_readable(row)) for row in rows}
    assert found == {(True, True), (True, False), (False, True), (False, False)}
    right = {row.first for row in rows if row.is_genuine(snapshot.topic) and is_readable(row)}
    assert right == {row.first for row in rows}


def publications_of(snapshot: Snapshot) -> list[RecordBatch]:
    """Return the stored publications, and those in messages."""
    stored = [row for state in snapshot.subscribers.values() for row in state.publications]
    return [*stored, *(row for p in snapshot.channels for row in publications_in(p.message))]


@every_code
def test_publications_of_a_catalogued_world_have_the_given_number_of_records(code: str) -> None:
    adversary = ADVERSARIES[code]
    for batch in (1, 2, 256):
        found = publications_of(adversary.build(5, Random(code), batch=batch))
        charters = {1} if code in RETAINED else set()
        assert {row.count for row in found} == (
            {batch} | charters if adversary.has_publications else set()
        )


def holders(snapshot: Snapshot) -> Counter[bytes]:
    """Return how many members hold each publication or are about to receive it."""
    held = [row.id for state in snapshot.subscribers.values() for row in state.publications]
    flying = [row.id for p in snapshot.channels for row in publications_in(p.message)]
    return Counter([*held, *flying])


@every_size
@pytest.mark.parametrize("code", ["A00", "A15", "A45"])
def test_each_scattered_publication_is_at_some_members_or_in_a_channel(code: str, n: int) -> None:
    before = build(code, n)
    after = scatter(before, 40, Random("0"))
    members = [node for node, state in before.subscribers.items() if state.member]
    counts = holders(after)
    assert len(counts) == 40
    assert max(counts.values()) <= min(8, n)
    for node, state in after.subscribers.items():
        assert state == replace(before.subscribers[node], publications=state.publications)
        assert node in members or not state.publications
    new = after.channels[len(before.channels) :]
    assert after.channels[: len(before.channels)] == before.channels
    assert all(parcel.to in members for parcel in new)
    assert {type(parcel.message) for parcel in new} == {PublishNew, Publications}


# -- memory of the machines ------------------------------------------------------------------


def changed_fields(part: Struct, prefix: str = "") -> Iterator[str]:
    """Return the fields that differ from those of a new machine, with a dot for inner parts."""
    for field in fields(type(part)):
        value = getattr(part, field.name)
        if isinstance(field.default, Struct):
            yield from changed_fields(value, f"{prefix}{field.name}.")
        elif value != field.default:
            yield f"{prefix}{field.name}"


def every_field(kind: type[Struct], prefix: str = "") -> Iterator[str]:
    for field in fields(kind):
        if isinstance(field.default, Struct):
            yield from every_field(type(field.default), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def remembered(*codes: str) -> set[str]:
    """Return the memory of subscribers of some adversaries that new ones do not have."""
    states = [state for code in codes for state in world(code, 64).subscribers.values()]
    memories = [state.memory for state in states if state.memory is not None]
    return {name for memory in memories for name in changed_fields(memory)}


def test_a66_changes_every_variable_of_a_subscriber() -> None:
    assert remembered("A66") == set(every_field(SubscriberMemory))
    assert remembered("A63", "A64", "A65") == remembered("A66")


def test_a60_to_a62_change_every_variable_of_the_supervisor() -> None:
    memories = [world(code, 64).supervisor.memory for code in ("A60", "A61", "A62")]
    found = {name for memory in memories if memory for name in changed_fields(memory)}
    assert found | {"ticks"} == set(every_field(SupervisorMemory))


def sum_of(snapshot: Snapshot) -> int:
    """Return the sum over the database, derived again."""
    roster = Roster()
    roster.load(snapshot.supervisor.database, 0)
    return roster.digest


@two_or_more
def test_a60_has_the_digest_of_the_actual_ring(n: int) -> None:
    snapshot = world("A60", n)
    states = snapshot.subscribers.items()
    weights = [Peer(state.label, node).weight for node, state in states if state.label]
    assert snapshot.supervisor.memory.digest == sum(weights) % CIRCLE
    assert snapshot.supervisor.memory.digest == snapshot.roster.digest() != sum_of(snapshot)


@two_or_more
def test_chains_of_a63_are_for_the_labels_around_their_node_and_wrong(n: int) -> None:
    wrong = 0
    for state in world("A63", n).subscribers.values():
        chains = state.chains
        right = chains_around(chains.own, chains.pred, chains.succ)
        assert right.own == state.label
        assert set(right.slots) == set(state.shortcuts)
        wrong += chains != right
    assert wrong > n // 2
