"""Section 3.1, Algorithm 3: the database of the supervisor, its four corruptions, round robin."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.config import Rule, Rules
from skipring.core.events import SubscribeRequested, Tick
from skipring.core.labels import Label
from skipring.core.messages import SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.roster import Roster, index_of
from skipring.core.state import SupervisorState
from skipring.world.adversaries.builders import Database, database_of, node_names
from skipring.world.legitimacy import Layer, violations
from tests.support.conversations import at, place, standing_ring
from tests.support.fake_host import sent
from tests.support.machines import FAST, PAPER, loaded_supervisor, supervisor, told, without
from tests.support.strategies import label_texts, supervisor_states

NOTHING_TO_DO = SubscribeRequested()  # an event that a supervisor ignores


def repaired(database: Iterable[tuple[str, NodeId | None]]) -> Roster:
    roster = Roster()
    roster.load(database, cursor=0)
    roster.repair()
    return roster


# -- configurations and round robin ----------------------------------------------------------


def test_configuration_is_predecessor_label_and_successor() -> None:
    """The triple (pred, label, succ) "according to the database"."""
    roster = repaired(database_of("abcd"))
    assert roster.configuration_of("a") == place("d@11", "0", "c@01")
    assert roster.configuration_of("b") == place("c@01", "1", "d@11")
    assert roster.configuration_of("c") == place("a@0", "01", "b@1")
    assert roster.configuration_of("d") == place("b@1", "11", "a@0")


def test_single_subscriber_has_label_0_and_no_neighbours() -> None:
    assert repaired([("0", "a")]).configuration_of("a") == place("-", "0", "-")


def test_predecessor_and_successor_are_adjacent_in_the_sorted_database() -> None:
    """Section 4.1: they can be read off, "since all tuples are sorted"; here without sorting."""
    for n in (*range(2, 70), 128, 129, 500):
        roster = repaired(database_of(node_names(n)))
        line = sorted(Peer(Label.nth(i), node) for i, node in enumerate(roster.nodes))
        for before, own, after in zip([line[-1], *line], line, [*line[1:], line[0]], strict=False):
            expected = SetConfiguration(before, own.label, after)
            assert roster.configuration_of(own.node) == expected, n


@pytest.mark.parametrize("rules", [PAPER, FAST], ids=["paper", "fast"])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 100])
def test_round_robin_visits_each_member_once_in_n_timeouts(rules: Rules, n: int) -> None:
    """In Timeout the supervisor sends one subscriber its configuration, in turn."""
    host = supervisor(*node_names(n), rules=rules, cursor=3 * n + 1)
    for _ in range(2):
        visited = [told(host, host.tick()) for _ in range(n)]
        assert all(len(nodes) == 1 for nodes in visited)
        assert sorted(node for (node,) in visited) == node_names(n)


@settings(deadline=None)
@given(cursor=st.integers(0, 10**30), n=st.integers(1, 20))
def test_round_robin_continues_from_any_next(cursor: int, n: int) -> None:
    """The variable next may be corrupted, too (S6)."""
    host = supervisor(*node_names(n), cursor=cursor)
    assert {told(host, host.tick())[0] for _ in range(n)} == set(node_names(n))


@pytest.mark.parametrize("rules", [PAPER, FAST], ids=["paper", "fast"])
def test_empty_database_causes_no_failure(rules: Rules) -> None:
    """Algorithm 3 takes next modulo n, and n may be 0 (S6)."""
    assert supervisor(rules=rules).tick() == []


# -- the four conditions ---------------------------------------------------------------------

CORRUPTED: dict[str, tuple[Database, str, str]] = {
    "i: a label without a subscriber": (
        (("0", "a"), ("1", "b"), ("01", None), ("11", "c")),
        "database: label '01' has no subscriber",
        "abc",
    ),
    "ii: one subscriber under two labels": (
        (("0", "a"), ("1", "b"), ("01", "c"), ("11", "a")),
        "database: a is recorded 2 times",
        "abc",
    ),
    "iii: a label is missing": (
        (("0", "a"), ("01", "b"), ("11", "c")),
        "database: label '11' is not among the first 3",
        "acb",  # the largest label moves into the gap
    ),
    "iv: a label too large": (
        (("0", "a"), ("1", "b"), ("111", "c")),
        "database: label '111' is not among the first 3",
        "abc",
    ),
    "iv: a label that l never produces": (
        (("0", "a"), ("1", "b"), ("010", "c")),
        "database: label '010' is not among the first 3",
        "abc",
    ),
}

every_condition = pytest.mark.parametrize(
    ("database", "words", "result"), CORRUPTED.values(), ids=CORRUPTED
)


@every_condition
def test_each_condition_is_detected_and_described(
    database: Database, words: str, result: str
) -> None:
    """The database is corrupted if one of four conditions holds; the text names which and where."""
    ring = standing_ring("abc")
    world = replace(ring, supervisor=SupervisorState(database=database))
    found = list(violations(world))
    assert words in [v.text for v in found if v.layer is Layer.DATABASE]


@every_condition
def test_each_condition_is_repaired_before_any_event(
    database: Database, words: str, result: str
) -> None:
    host = loaded_supervisor(SupervisorState(database=database))
    host.handle(NOTHING_TO_DO)
    assert host.machine.roster.database() == database_of(result)


@every_condition
def test_repair_generates_no_messages(database: Database, words: str, result: str) -> None:
    """The text: "All of these actions are performed locally, i.e., they generate no messages"."""
    host = loaded_supervisor(SupervisorState(database=database), rules=PAPER)
    assert host.request(NOTHING_TO_DO) == []


@every_condition
def test_repair_informs_the_members_whose_configuration_it_changed_with_all_rules(
    database: Database, words: str, result: str
) -> None:
    """S11: the configuration after the repair differs from the one before."""
    host = loaded_supervisor(SupervisorState(database=database), rules=without(Rule.QUEUE))
    nodes = told(host, host.request(NOTHING_TO_DO))
    assert len(set(nodes)) == len(nodes)
    assert set(nodes) <= set(result)
    moved = {node for bits, node in host.machine.roster.database() if (bits, node) not in database}
    assert moved <= set(nodes)


def test_lowest_label_of_several_copies_stays() -> None:
    """(ii): "removes all duplicates except the tuple with lowest label"; by index (S4)."""
    database = (("011", "a"), ("1", "a"), ("0", "b"), ("01", "c"), ("001", "a"))
    assert repaired(database).database() == database_of("bac")


def test_gap_is_filled_with_the_largest_label_of_all() -> None:
    """(iii): "the tuple (l(j), w) with maximum j > i"."""
    database = (("0", "a"), ("01", "b"), ("001", "c"), ("111", "d"))  # indices 0, 2, 4, 7
    assert repaired(database).database() == database_of("adbc")


def test_label_that_l_never_produces_is_moved_first() -> None:
    """S5: it counts as larger than all others."""
    database = (("0", "a"), ("10", "b"), ("0001", "c"))
    assert repaired(database).database() == database_of("abc")


# -- arbitrary databases ---------------------------------------------------------------------

databases = supervisor_states([*"abcdefgh", SUPERVISOR]).map(lambda state: state.database)


@settings(deadline=None)
@given(databases)
@example(())
@example((("", "a"), ("", "a"), ("0", None)))
def test_any_database_becomes_exactly_the_first_n_labels(database: Database) -> None:
    """Supervisor Validity: none of the four conditions is left."""
    result = repaired(database).database()
    assert [bits for bits, _ in result] == [Label.nth(i).bits for i in range(len(result))]
    subscribers = {node for _, node in database} - {None, SUPERVISOR}
    assert Counter(node for _, node in result) == Counter(subscribers)


@settings(deadline=None)
@given(databases)
def test_second_repair_changes_nothing(database: Database) -> None:
    once = repaired(database).database()
    again = Roster()
    again.load(once, cursor=0)
    assert again.repair() == []
    assert again.database() == once


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_valid_database_is_not_changed(nodes: list[NodeId]) -> None:
    roster = Roster()
    roster.load(database_of(nodes), cursor=0)
    assert roster.repair() == []
    assert roster.database() == database_of(nodes)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12)), unique_by=lambda e: e[1]))
def test_repair_equals_the_pseudocode(entries: list[tuple[NodeId, int]]) -> None:
    """CheckMultipleCopies and CheckLabels, literally, on a hash map from labels."""
    database = {index: node for node, index in sorted(entries, key=lambda entry: entry[1])}
    for index, node in list(database.items()):  # lowest first: later ones are the copies
        if node in [database[i] for i in database if i < index]:
            del database[index]
    for i in range(len(database)):
        if i not in database:
            database[i] = database.pop(max(j for j in database if j > i))
    expected = database_of(database[i] for i in range(len(database)))
    assert repaired((Label.nth(index).bits, node) for node, index in entries).database() == expected


@settings(deadline=None)
@given(label_texts())
def test_label_in_a_database_has_an_index_exactly_if_l_produces_it(bits: str) -> None:
    index = index_of(bits)
    assert (index is not None) == ((bits == "0" or bits[-1:] == "1") and len(bits) <= 64)
    assert index is None or Label.nth(index).bits == bits


@settings(deadline=None)
@given(databases, st.randoms(use_true_random=False))
def test_order_of_a_database_does_not_matter(database: Database, rng: Random) -> None:
    """The database is a set."""
    shuffled = rng.sample(database, len(database))
    assert repaired(shuffled).database() == repaired(database).database()


def test_first_timeout_uses_the_repaired_database() -> None:
    """CheckLabels comes first in Timeout."""
    state = SupervisorState(database=(("0", None), ("1", "a"), ("11", "b")))
    effects = loaded_supervisor(state, rules=PAPER).handle(Tick())
    assert sent(effects) == [("a", SetConfiguration(at("b@0"), Label.parse("1"), at("b@0")))]
