"""Necessity of every rule about publications that can be switched off.

As in ``test_rules.py``: each claim holds with all rules on and not with the one rule off. If
another rule would hide the effect, the rule is switched on alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig, Rule, Rules, Spread
from skipring.core.messages import CheckAndPublish
from skipring.core.peers import NodeId
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import Publication
from skipring.core.summaries import DIGEST_BYTES, RangeSummary
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import legitimate_world
from skipring.world.adversaries.builders import made_publications, with_states
from skipring.world.legitimacy import has_all_publications
from tests.core.test_rules import both_ways, switched
from tests.support.machines import FAST, PAPER, only
from tests.support.sessions import P, Party, Talk, limited, opaque, random_ids


def talk(u: Iterable[str], v: Iterable[str], rules: Rules) -> Talk:
    """Return two parties that hold publications under these bits."""
    return Talk(map(P, u), map(P, v), limited(rules))


# -- one session ---------------------------------------------------------------------------------


@both_ways
def test_T3_all_missing_publications_beside_a_deeper_node_are_sent_at_once(on: bool) -> None:
    said = talk(["000", "001", "01"], ["000"], only(Rule.COMPLEMENT) if on else PAPER).session("u")
    assert said.is_equal is on


@both_ways
@pytest.mark.parametrize("first", ["u", "v"])
def test_T4_one_session_makes_both_equal_whichever_side_asks(first: NodeId, on: bool) -> None:
    """Each side lacks a publication of the other; without the rule only one side receives it."""
    rules = FAST if on else Rules.of(without=(Rule.COVER, Rule.COMPLEMENT))
    u, v = ("000", "001", "01", "110"), ("000", "01", "10", "111")
    assert talk(u, v, rules).session(first).is_equal is on


@both_ways
def test_T6_empty_answer_is_not_sent(on: bool) -> None:
    party = Party("v", [P("0")], limited(switched(Rule.NO_NOISE, on)))
    wanted = CheckAndPublish("u", (), wanted=(RangeSummary.make(Prefix.parse("1")),))
    assert (party.receive(wanted) == []) is on


@both_ways
def test_T8_party_with_an_open_session_asks_no_other(on: bool) -> None:
    u = Party("u", [P("0"), P("10")], limited(switched(Rule.ONE_SESSION, on)))
    v = Party("v", [P("0"), P("11")])
    ((_, question),) = u.tick("v")
    for _, answer in v.receive(question):
        u.receive(answer)
    assert (u.tick("v") == []) is on


@both_ways
def test_T10_wrong_digest_is_found_and_corrected(on: bool) -> None:
    party = Party("u", [P("00"), P("01")], limited(switched(Rule.SCRUB, on)))
    party.replica.index().corrupt({ALL: bytes(DIGEST_BYTES)})
    party.tick("v")
    assert (party.replica.index().wrong_digests() == {}) is on


@both_ways
def test_batch_hundred_differences_take_few_messages(on: bool) -> None:
    rng = Random(0)
    shared = random_ids(2000, rng)
    halves = [opaque([*shared, *random_ids(50, rng)]) for _ in range(2)]
    said = Talk(*halves, limited(switched(Rule.BATCH, on), hashed_ids=1 << 16)).session("u")
    assert said.is_equal
    assert (len(said.messages()) <= 12) is on  # else hundreds


# -- rounds in a ring ----------------------------------------------------------------------------


def rounds_until_all_have_all(n: int, count: int, config: ProtocolConfig) -> int:
    """Return the rounds until all have ``count`` publications that start at one node each."""
    rng = Random(n)
    start = legitimate_world(n, rng)
    nodes = list(start.subscribers)
    held: dict[NodeId, tuple[Publication, ...]] = {}
    for publication in made_publications(start.topic, count, nodes, rng):
        node = rng.choice(nodes)
        held[node] = (*held.get(node, ()), publication)
    start = with_states(start, lambda node, state: replace(state, publications=held.get(node, ())))
    world = World(start, seed=0, config=config)
    while not has_all_publications(world):
        assert world.round < 500, "not all have all"
        run_rounds(world, RandomOrder(), 1)
    return world.round


@both_ways
def test_R16_repair_over_shortcuts_takes_few_rounds(on: bool) -> None:
    """The flood announces nothing, so that only anti-entropy spreads the publications."""
    rules = switched(Rule.REPAIR_OVER_SHORTCUTS, on)
    config = ProtocolConfig(rules=rules, spread=Spread.FLOOD)
    assert (rounds_until_all_have_all(64, 1, config) <= 25) is on  # 12, else over 40


@both_ways
def test_R17_announced_repairs_are_faster_than_repairs(on: bool) -> None:
    config = ProtocolConfig(rules=switched(Rule.RUMOURS, on))
    assert (rounds_until_all_have_all(64, 60, config) <= 10) is on  # 6, else 17 to 24
