"""Peers, the total order of the ring, and its two directions (section 1.1)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.labels import CIRCLE, HALF_CIRCLE, Label
from skipring.core.peers import LEFT, RIGHT, SIDES, Peer, is_farther
from tests.support.machines import label, peer, unhurried
from tests.support.strategies import labels, node_names

anybody = st.builds(Peer, labels(), node_names())


@unhurried
@given(anybody, anybody)
def test_peers_are_ordered_by_label_and_then_by_id(a: Peer, b: Peer) -> None:
    assert (a < b) == ((a.label.bits, a.node) < (b.label.bits, b.node))


def test_equal_labels_are_ordered_by_id() -> None:
    own = peer("01", "m")
    assert own.side_of(peer("01", "a")) is LEFT
    assert own.side_of(peer("01", "z")) is RIGHT


def test_B3_peer_without_a_label_cannot_be_constructed() -> None:
    assert msgspec.convert([[0], "a"], Peer) == peer("0", "a")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([None, "a"], Peer)


def test_B11_distances_are_directed() -> None:
    low, high = label("01"), label("11")
    assert RIGHT.distance(low, high) == LEFT.distance(high, low) == HALF_CIRCLE
    low, high = label("0"), label("001")
    assert RIGHT.distance(low, high) == CIRCLE // 8
    assert LEFT.distance(low, high) == CIRCLE // 8 * 7


def test_B11_distances_are_circular() -> None:
    assert LEFT.distance(label("0"), label("111")) == CIRCLE // 8
    assert RIGHT.distance(label("111"), label("0")) == CIRCLE // 8


@unhurried
@given(labels(), labels())
def test_B11_two_directed_distances_add_up_to_the_circle(a: Label, b: Label) -> None:
    there, back = RIGHT.distance(a, b), LEFT.distance(a, b)
    assert (there + back) % CIRCLE == 0
    assert there == LEFT.distance(b, a)
    assert 0 <= there < CIRCLE


def test_each_side_is_the_opposite_of_the_other() -> None:
    assert [side.opposite for side in SIDES] == [RIGHT, LEFT]


def test_farther_depends_on_the_side_and_keeps_the_first_of_equal_labels() -> None:
    near, far = peer("01", "b"), peer("001", "b")
    assert is_farther(far, near, LEFT)
    assert not is_farther(near, far, LEFT)
    assert is_farther(near, far, RIGHT)
    for side in SIDES:
        assert is_farther(peer("01", "a"), near, side)
        assert is_farther(peer("01", "c"), near, side)


def test_equal_label_fits_on_both_sides() -> None:
    own = peer("01", "m")
    assert [own.has_on(side, peer("01", "b")) for side in SIDES] == [True, True]
    assert [own.has_on(side, peer("001", "b")) for side in SIDES] == [True, False]
    assert [own.has_on(side, peer("011", "b")) for side in SIDES] == [False, True]


@unhurried
@given(anybody, anybody)
def test_R14_weight_depends_on_label_and_node(a: Peer, b: Peer) -> None:
    assert (a.weight == b.weight) == (a == b)
    assert 0 <= a.weight < CIRCLE


def test_R14_swapped_labels_of_two_nodes_change_the_sum() -> None:
    before = peer("01", "a").weight + peer("11", "b").weight
    after = peer("01", "b").weight + peer("11", "a").weight
    assert before % CIRCLE != after % CIRCLE


def test_R14_weights_on_the_wire_are_stable() -> None:
    assert peer("01", "a").weight == 0x645FEE03A1C88D16
