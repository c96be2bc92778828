"""Roster of the supervisor: repairs, changes and the affected members (section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import UNRECORDED, SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.roster import Roster, index_of
from tests.support.machines import label, peer, unhurried
from tests.support.strategies import label_texts

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
NODES = ("a", "b", "c", "d", "e", SUPERVISOR)
databases = st.lists(st.tuples(label_texts(), st.none() | st.sampled_from(NODES)), max_size=12)


def roster_of(nodes: Iterable[NodeId], cursor: int = 0) -> Roster:
    roster = Roster()
    for node in nodes:
        roster.add(node)
    roster.cursor = cursor
    return roster


def repaired(*database: tuple[str, NodeId | None]) -> list[NodeId]:
    """Return the members after the repair of a database, in the order of their labels' indices."""
    roster = Roster()
    roster.load(database, 0)
    roster.repair()
    return list(roster.nodes)


def configurations(roster: Roster) -> dict[NodeId, SetConfiguration]:
    return {node: roster.configuration_of(node) for node in roster.nodes}


# -- repair ------------------------------------------------------------------------------------


def test_entries_without_a_subscriber_are_dropped() -> None:
    assert repaired(("0", "a"), ("1", None), ("01", "b")) == ["a", "b"]


def test_S10_repair_removes_the_supervisor_from_its_own_database() -> None:
    assert repaired(("0", SUPERVISOR), ("1", "a")) == ["a"]


@pytest.mark.parametrize("copies", [("1", "001"), ("001", "1")])
def test_S4_lowest_index_of_several_copies_of_a_node_stays(copies: tuple[str, str]) -> None:
    # 1 has index 1 and 001 has index 4, although 001 sorts first as text.
    others = (("0", "b"), ("01", "c"), ("11", "d"), ("101", "e"))
    assert repaired(*((bits, "a") for bits in copies), *others) == ["b", "a", "c", "d", "e"]


@pytest.mark.parametrize("bits", ["", "00", "10", "1" * 65])
def test_S5_label_that_l_never_produces_loses_against_every_valid_copy(bits: str) -> None:
    assert index_of(bits) is None
    assert repaired((bits, "b"), ("1", "b"), ("0", "a")) == ["a", "b"]


def test_gaps_are_closed_by_the_largest_labels() -> None:
    assert repaired(("0", "a"), ("001", "b"), ("111", "c")) == ["a", "c", "b"]


def test_one_of_two_nodes_under_one_label_keeps_it() -> None:
    assert repaired(("0", "b"), ("0", "a")) == ["a", "b"]


def test_S9_valid_database_is_loaded_unchanged_and_affects_no_member() -> None:
    roster = Roster()
    clean = (("0", "c"), ("1", "a"), ("01", "b"))
    roster.load(clean, 2)
    assert not roster.is_loaded
    assert roster.database() == clean
    assert roster.repair() == []
    assert not roster.is_loaded
    assert roster.database() == clean
    assert roster.cursor == 2


def test_S9_repair_affects_the_members_whose_configuration_it_changes() -> None:
    roster = Roster()
    roster.load([("0", "a"), ("1", "b"), ("01", "c"), ("001", "d")], 0)  # 11 is missing
    # 0 a, 1 b, 01 c and now 11 d: the configuration of c is the same without 001 between 0 and 01.
    assert list(roster.repair()) == ["a", "b", "c", "d"]
    roster.load([("0", "a"), ("1", "b"), ("01", "c"), ("01", None)], 0)
    assert roster.repair() == []


@unhurried
@given(databases)
@example([("1", "a"), ("01", "a"), ("01", "b"), ("0", "c")])
def test_S4_node_that_is_alone_under_its_lowest_label_keeps_it_if_it_is_small_enough(
    database: list[tuple[str, NodeId | None]],
) -> None:
    lowest: dict[NodeId, int] = {}
    for bits, node in database:
        index = index_of(bits)
        if node is not None and node != SUPERVISOR and index is not None:
            lowest[node] = min(index, lowest.get(node, index))
    members = repaired(*database)
    for node, index in lowest.items():
        if index < len(members) and list(lowest.values()).count(index) == 1:
            assert members[index] == node


def test_S9_audit_finds_an_inconsistent_list_when_it_reaches_the_slot() -> None:
    roster = roster_of("abcd")
    roster._nodes[3] = "a"
    assert [roster.audit(1) for _ in range(4)] == [False, False, False, True]
    assert list(roster.nodes) == ["a", "b", "c"]
    assert [roster.configuration_of(node).label for node in roster.nodes] == [
        Label.nth(index) for index in range(3)
    ]
    assert not roster.audit(1)


def test_S9_audit_finds_surplus_entries_of_the_index() -> None:
    roster = roster_of("ab")
    roster._index["ghost"] = 7
    assert roster.audit(1)
    assert "ghost" not in roster


def test_S9_audit_drops_the_supervisor_from_the_list() -> None:
    roster = roster_of(["a", SUPERVISOR, "b"])
    assert roster.audit(3)
    assert list(roster.nodes) == ["a", "b"]


@pytest.mark.parametrize("wrong", [-1, 0, 2, 7])
def test_S9_node_that_is_not_at_its_indexed_place_is_not_recorded(wrong: int) -> None:
    roster = roster_of("abc")
    roster._index["b"] = wrong
    assert "b" not in roster
    assert roster.label_of("b") is None
    assert roster.configuration_of("b") == UNRECORDED
    assert roster.remove("b") == []
    assert roster.audit(3)
    assert roster.label_of("b") == Label.nth(1)


def test_S9_audit_of_an_empty_roster_finds_nothing() -> None:
    assert not Roster().audit(1)


# -- configurations ----------------------------------------------------------------------------


def test_S1_configuration_of_an_unknown_node_is_empty() -> None:
    assert roster_of("ab").configuration_of("x") == UNRECORDED == SetConfiguration(None, None, None)


def test_two_members_are_each_others_neighbours_on_both_sides() -> None:
    roster = roster_of("ab")
    b = peer("1", "b")
    assert roster.configuration_of("a") == SetConfiguration(b, label("0"), b)


# -- round robin -------------------------------------------------------------------------------


@unhurried
@given(st.integers())
def test_S6_any_cursor_is_taken_modulo_n(cursor: int) -> None:
    roster = roster_of("abc", cursor)
    assert roster.advance() == "abc"[(cursor + 1) % 3]
    assert 0 <= roster.cursor < 3
    roster = roster_of("abc", cursor)
    assert not roster.audit(1)


# -- changes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(40))
def test_S11_join_affects_the_newcomer_and_at_most_two_others(n: int) -> None:
    roster = roster_of(LETTERS[:n])
    before = configurations(roster)
    concerned = roster.add("new")
    after = configurations(roster)
    changed = {node for node in after if after[node] != before.get(node)}
    assert sorted(concerned) == sorted(changed)
    assert len(concerned) <= 3
    assert after["new"].label == Label.nth(n)


@pytest.mark.parametrize("n", range(1, 41))
def test_S11_departure_affects_at_most_six_others(n: int) -> None:
    for leaver in LETTERS[:n]:
        roster = roster_of(LETTERS[:n])
        before = configurations(roster)
        concerned = roster.remove(leaver)
        after = configurations(roster)
        assert sorted(concerned) == sorted(node for node in after if after[node] != before[node])
        assert len(concerned) <= 6


@pytest.mark.parametrize("n", range(2, 41))
def test_S7_no_member_is_its_own_neighbour_or_the_neighbour_of_the_leaver_after_a_change(
    n: int,
) -> None:
    for leaver in LETTERS[:n]:
        roster = roster_of(LETTERS[:n])
        roster.remove(leaver)
        assert leaver not in roster
        for node, told in configurations(roster).items():
            around = (told.pred, told.succ)
            beside = {neighbour.node for neighbour in around if neighbour is not None}
            assert beside.isdisjoint({node, leaver})
            assert beside or n == 2


def test_S7_last_member_moves_into_the_gap_and_gets_its_new_configuration() -> None:
    # 0 a, 001 e, 01 c, 1 b, 11 d. The last label, 001, is beside 0.
    roster = roster_of("abcde")
    assert sorted(roster.remove("a")) == ["c", "d", "e"]
    assert list(roster.nodes) == ["e", "b", "c", "d"]
    expected = SetConfiguration(peer("11", "d"), label("0"), peer("01", "c"))
    assert roster.configuration_of("e") == expected


def test_removal_of_an_unknown_node_affects_no_member() -> None:
    roster = roster_of("ab")
    assert roster.remove("x") == []
    assert list(roster.nodes) == ["a", "b"]


# -- the sum over all members ------------------------------------------------------------------


def recomputed(roster: Roster) -> int:
    weights = [Peer(Label.nth(index), node).weight for index, node in enumerate(roster.nodes)]
    return sum(weights) % CIRCLE


@unhurried
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), max_size=20))
def test_R14_digest_follows_every_change_of_the_roster(
    changes: list[tuple[bool, NodeId]],
) -> None:
    roster = Roster()
    assert roster.digest() == 0
    for joins, node in changes:
        if joins and node not in roster:
            roster.add(node)
        elif not joins:
            roster.remove(node)
        assert roster.digest() == recomputed(roster)


def audits_until_right(roster: Roster, slots: int) -> int:
    """Return the number of audits until the digest is the sum over the members."""
    for count in range(1000):
        if roster.digest() == recomputed(roster):
            return count
        assert not roster.audit(slots)
    pytest.fail("the digest stays wrong")


@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("place", [-5, 0, 3, 10**9])
def test_wrong_digest_is_replaced_within_two_passes_of_the_audit(n: int, place: int) -> None:
    roster = roster_of(LETTERS[:n])
    roster._digest = 7
    assert audits_until_right(roster, 8) == -(-n // 8)
    roster._digest, roster._audited, roster._audited_sum = 7, place, 99
    assert audits_until_right(roster, 8) <= 2 * -(-n // 8)


@unhurried
@given(st.lists(st.sampled_from([*"abcdef", "audit"]), max_size=30))
def test_digest_of_the_audit_follows_changes_of_the_roster(steps: list[str]) -> None:
    roster = roster_of("abc")
    for step in steps:
        if step == "audit":
            assert not roster.audit(2)
        elif step in roster:
            roster.remove(step)
        else:
            roster.add(step)
        assert roster.digest() == recomputed(roster)


def test_R14_two_swapped_members_change_the_digest() -> None:
    assert roster_of("abcd").digest() != roster_of("abdc").digest()


@pytest.mark.parametrize(("nodes", "first"), [("", None), ("ba", "b")])
def test_first_member_is_the_one_with_label_0(nodes: str, first: NodeId | None) -> None:
    assert roster_of(nodes).first == first
