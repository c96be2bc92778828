"""Rules and constants of the protocol, and the necessity of every rule that can be switched off.

A test of necessity checks one claim twice: it holds with all rules on, and does not hold with one
rule off. If other rules repair the same damage later and hide the effect on a whole ring, the rule
is switched off in mode ``fixed``, which lacks those others, or switched on alone. All runs are
deterministic; the bounds are far from the measured values on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from statistics import median

import pytest
from msgspec.structs import replace

from skipring.core.config import MODE_RULES, Mode, ProtocolConfig, Rule, Rules, Spread
from skipring.core.messages import (
    CheckAndPublish,
    CheckLabel,
    GetConfiguration,
    Introduce,
    SetConfiguration,
)
from skipring.core.peers import EdgeKind, NodeId
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import Publication
from skipring.core.shortcuts import Shortcuts
from skipring.core.state import SupervisorState, legitimate_state
from skipring.core.summaries import DIGEST_BYTES, RangeSummary
from skipring.sim.engine import World
from skipring.sim.network_faults import Duplication, Fault
from skipring.sim.process_faults import OracleDetector
from skipring.sim.schedulers import RandomOrder, Scheduler, Synchronous, run_rounds
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.adversaries.builders import (
    database_of,
    made_publications,
    recorded_nodes,
    with_states,
)
from skipring.world.legitimacy import (
    Layer,
    has_all_publications,
    is_strictly_legitimate,
    violations,
)
from skipring.world.snapshot import Snapshot
from tests.support.machines import (
    FAST,
    FIXED,
    ME,
    PAPER,
    Scripted,
    asked,
    edges,
    hear,
    label,
    only,
    peer,
    ring_at,
    subscriber,
    written,
)
from tests.support.sessions import P, Party, Talk, limited, opaque, random_ids

RING = ["R1", "R2", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"]


PUBLICATIONS = ["T3", "T4", "T6", "T8", "T10", "batch"]


NAMES = [*RING, "R16", "R17", "S11", "B13", "k+1", *PUBLICATIONS, "D1"]


def rules_on(rules: Rules) -> set[Rule]:
    return {rule for rule in Rule if getattr(rules, rule.name.lower())}


def test_rules_that_can_be_switched_off_are_listed() -> None:
    assert [str(rule) for rule in Rule] == NAMES


def test_every_rule_has_its_own_switch() -> None:
    assert list(Rules.__struct_fields__) == [rule.name.lower() for rule in Rule]


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (Mode.PAPER, set()),
        (Mode.FIXED, {"R1", "R2", "R9", "B13", "k+1", *PUBLICATIONS}),
        (Mode.FAST, set(NAMES) - {"D1"}),
        (Mode.DETERMINISTIC, set(NAMES)),
    ],
)
def test_mode_is_a_set_of_rules(mode: Mode, names: set[str]) -> None:
    assert set(MODE_RULES[mode]) == names
    assert rules_on(Rules.of(mode)) == names


@pytest.mark.parametrize("rule", Rule)
def test_single_rule_can_be_switched_off(rule: Rule) -> None:
    assert rules_on(Rules.of(Mode.DETERMINISTIC, [rule])) == set(Rule) - {rule}


def test_fast_mode_is_the_default() -> None:
    assert ProtocolConfig().rules == Rules.of() == Rules.of(Mode.FAST)


def test_constants_have_their_measured_values() -> None:
    config = ProtocolConfig()
    assert (config.neighbour_timeout_ticks_min, config.neighbour_timeout_ticks_max) == (8, 64)
    assert (config.answers_min, config.answers_share) == (64, 8)
    assert (config.digest_settle_ticks, config.digest_mismatches) == (4, 2)
    assert (config.refresh_ticks, config.refresh_share) == (16, 16)


# -- necessity of the rules of the ring --------------------------------------------------------


both_ways = pytest.mark.parametrize("on", [True, False], ids=["on", "off"])


def switched(rule: Rule, on: bool, mode: Mode = Mode.FAST) -> Rules:
    """Return all rules of a mode, or all but one."""
    return Rules.of(mode, () if on else (rule,))


# -- running a world ---------------------------------------------------------------------------


class Run:
    """World under some rules, from an adversary's or any other start."""

    def __init__(
        self,
        start: Snapshot,
        rules: Rules,
        *,
        seed: int = 0,
        faults: Sequence[Fault] = (),
        scheduler: Scheduler | None = None,
    ) -> None:
        self.world = World(start, seed=seed, config=ProtocolConfig(rules=rules), faults=faults)
        self._scheduler = scheduler if scheduler is not None else RandomOrder()
        self._detector = OracleDetector()

    def round(self) -> None:
        self.world.begin_round()
        self._detector.strike(self.world)
        self._scheduler.run_round(self.world)
        self.world.end_round()

    def rounds(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.round()
            yield number

    def heals(self, rounds_max: int) -> bool:
        """Run until the state is strictly legitimate; return False if that takes longer."""
        if is_strictly_legitimate(self.world):
            return True
        return any(is_strictly_legitimate(self.world) for _ in self.rounds(rounds_max))


def start_of(adversary: str, n: int, seed: int) -> Snapshot:
    return ADVERSARIES[adversary].build(n, Random(f"{adversary}/{seed}"))


def healed(
    adversary: str, n: int, rules: Rules, *, rounds_max: int, seeds: Sequence[int]
) -> list[bool]:
    """Return which worlds of an adversary heal in time."""
    starts = ((seed, start_of(adversary, n, seed)) for seed in seeds)
    return [Run(start, rules, seed=seed).heals(rounds_max) for seed, start in starts]


# -- R1 ----------------------------------------------------------------------------------------


@both_ways
def test_R1_displaced_shortcut_is_probed(on: bool) -> None:
    shortcuts = Shortcuts(ring_at("01", left=peer("001", "a"), rules=switched(Rule.PROBE, on)))
    shortcuts.slots = {label("0"): "b"}
    sent = written(lambda out: shortcuts.on_introduce_shortcut(peer("0", "c"), out))
    assert (sent == [("b", CheckLabel(peer("01", ME), label("0"), EdgeKind.LINE))]) is on


@both_ways
def test_R1_stale_shortcuts_heal_without_help_of_the_line(on: bool) -> None:
    rules = switched(Rule.PROBE, on, Mode.FIXED)
    found = healed("A12", 128, rules, rounds_max=13, seeds=(0, 1))  # <= 9, else >= 17
    assert found == [on] * 2


@both_ways
def test_R1_alone_heals_stale_shortcuts_before_the_paper_does(on: bool) -> None:
    rules = only(Rule.PROBE) if on else PAPER
    found = healed("A12", 32, rules, rounds_max=14, seeds=(0, 1, 2))  # <= 7, else >= 31
    assert found == [on] * 3


# -- D1 ----------------------------------------------------------------------------------------


@both_ways
def test_D1_no_coin_is_thrown(on: bool) -> None:
    rng = Scripted(1)
    rules = switched(Rule.DETERMINISTIC, on, Mode.DETERMINISTIC)
    state = legitimate_state(1, ["a", ME, "b"])
    subscriber(state, rules=rules, rng=rng).tick(3)
    assert (rng.odds == []) is on


# -- R2 ----------------------------------------------------------------------------------------


@both_ways
def test_R2_second_hand_introductions_do_not_change_neighbours(on: bool) -> None:
    ring = ring_at("01", left=peer("0", "a"), rules=switched(Rule.FIRST_HAND, on))
    before = edges(ring)
    hear(ring, Introduce(peer("001", "b"), EdgeKind.LINE, first_hand=False))
    assert (edges(ring) == before) is on


@both_ways
def test_R2_wrong_beliefs_about_neighbours_do_not_spread(on: bool) -> None:
    rules = switched(Rule.FIRST_HAND, on, Mode.FIXED)
    found = healed("A10", 128, rules, rounds_max=29, seeds=(0, 1))  # <= 24, else >= 34
    assert found == [on] * 2


# -- R8 ----------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("link", EdgeKind)
def test_R8_another_node_with_the_own_label_is_reported_and_not_stored(
    on: bool, link: EdgeKind
) -> None:
    ring = ring_at("01", rules=switched(Rule.EQUAL_LABEL, on))
    sent = hear(ring, Introduce(peer("01", "z"), link, first_hand=True))
    assert (sent == asked("z")) is on
    assert (edges(ring) == (None, None, None)) is on


# -- R9 ----------------------------------------------------------------------------------------


@both_ways
def test_R9_node_that_knows_only_a_dead_neighbour_is_found(on: bool) -> None:
    rules = switched(Rule.NEIGHBOUR_TIMEOUT, on)
    found = healed("A18", 16, rules, rounds_max=100, seeds=(0, 1, 2))  # <= 15, else never
    assert found == [on] * 3


# -- R10 ---------------------------------------------------------------------------------------


@both_ways
def test_R10_unsubscribe_costs_few_introductions(on: bool) -> None:
    run = Run(legitimate_world(64, Random(1)), switched(Rule.SUPERVISOR_FIRST, on))
    chance, costs = Random(1), []
    for _ in range(15):
        before = run.world.sent[Introduce]
        members = [node for node, machine in run.world.subscribers.items() if machine.wants]
        run.world.unsubscribe(chance.choice(members))
        assert run.heals(400)
        costs.append(run.world.sent[Introduce] - before)
    assert (median(costs) <= 14) is on  # about 1, else 40 to 100


# -- R11 ---------------------------------------------------------------------------------------


@both_ways
def test_R11_all_members_notice_a_lost_database_in_few_rounds(on: bool) -> None:
    rules = switched(Rule.WAKE, on)
    found = healed("A05", 128, rules, rounds_max=22, seeds=(0, 1))  # <= 15, else >= 30
    assert found == [on] * 2


# -- R12 ---------------------------------------------------------------------------------------


@both_ways
def test_R12_replaced_adjacent_members_find_their_places(on: bool) -> None:
    rules = switched(Rule.CONFLICT, on)
    found = healed("A41", 128, rules, rounds_max=16, seeds=(0, 1, 2))  # <= 11, else 11 to 41
    assert all(found) is on


# -- R13 ---------------------------------------------------------------------------------------


@both_ways
def test_R13_messages_that_arrive_twice_do_not_multiply(on: bool) -> None:
    run = Run(
        start_of("A06", 64, 0),
        switched(Rule.NO_WRAP_FORWARDING, on),
        faults=[Duplication(0.2)],
    )
    bound = 1000  # the run is stopped there: at most 134, else without end
    assert all(len(run.world.channels) <= bound for _ in run.rounds(40)) is on


# -- R14 ---------------------------------------------------------------------------------------


def swapped_behind_the_cursor(n: int, seed: int) -> Snapshot:
    """Return a world with two leaves swapped in the database, far from the round-robin cursor."""
    chance = Random(seed)
    world = legitimate_world(n, chance)
    before, nodes = world.roster, recorded_nodes(world)
    before.repair()
    i, j = chance.sample(range(n // 2, n), 2)
    nodes[i], nodes[j] = nodes[j], nodes[i]
    swapped = replace(world, supervisor=SupervisorState(database=database_of(nodes)))
    after = swapped.roster
    after.repair()
    wrong = [
        index
        for index, node in enumerate(nodes)
        if before.configuration_of(node) != after.configuration_of(node)
    ]
    gaps = {(b - a) % n: a for a, b in zip(wrong, [*wrong[1:], wrong[0]], strict=True)}
    cursor = gaps[max(gaps)]
    return replace(swapped, supervisor=SupervisorState(database=database_of(nodes), next=cursor))


@both_ways
def test_R14_two_swapped_members_are_found_before_round_robin_reaches_them(on: bool) -> None:
    rules = switched(Rule.DIGEST, on)
    runs = [Run(swapped_behind_the_cursor(256, seed), rules, seed=seed) for seed in (2, 3)]
    assert all(run.heals(60) for run in runs) is on  # <= 35, else 98 and 95


# -- R15 ---------------------------------------------------------------------------------------


@both_ways
def test_R15_lost_database_does_not_flood_the_network_with_configurations(on: bool) -> None:
    n = 128
    run = Run(start_of("A05", n, 0), switched(Rule.QUEUE, on))
    said = []
    for _ in range(20):
        before = run.world.sent[SetConfiguration]
        run.round()
        said.append(run.world.sent[SetConfiguration] - before)
    assert (max(said) <= 2 * 64) is on  # the two budgets of one timeout, else ten per node
    assert is_strictly_legitimate(run.world)


# -- S11 ---------------------------------------------------------------------------------------


@both_ways
def test_S11_ring_is_legitimate_two_rounds_after_a_join(on: bool) -> None:
    run = Run(legitimate_world(64, Random(5)), switched(Rule.PUSH, on), scheduler=Synchronous())
    right: list[bool] = []
    for newcomer in ("x", "y", "z"):
        run.world.subscribe(newcomer)
        for _ in run.rounds(2):
            pass
        wrong = {violation.layer for violation in violations(run.world)}
        right.append(wrong.isdisjoint({Layer.DATABASE, Layer.LABELS, Layer.RING}))
        assert run.heals(50)
    assert right == [on] * 3


# -- B13 ---------------------------------------------------------------------------------------


@both_ways
def test_B13_references_to_dead_nodes_do_not_stay(on: bool) -> None:
    rules = switched(Rule.OVERWRITE, on)
    found = healed("A17", 32, rules, rounds_max=100, seeds=(0, 1, 2, 3))  # <= 9, else never
    assert found == [on] * 4


# -- k+1 ---------------------------------------------------------------------------------------


@both_ways
def test_k_plus_1_keeps_requests_to_the_supervisor_below_one_per_round(on: bool) -> None:
    run = Run(legitimate_world(4, Random(1)), switched(Rule.RARE_REQUESTS, on))
    rounds = 2000
    for _ in run.rounds(rounds):
        pass
    # Expected: 1/2 + 1/4 + 1/32 + 1/32 = 0.81, else 1/2 + 1/2 + 1/16 + 1/16 = 1.13.
    assert (run.world.sent[GetConfiguration] / rounds < 0.912) is on


# -- all rules ---------------------------------------------------------------------------------


def test_rule_that_is_off_in_a_mode_is_on_in_a_faster_one() -> None:
    on = [{rule for rule in Rule if getattr(r, rule.name.lower())} for r in (PAPER, FIXED, FAST)]
    assert on[0] < on[1] < on[2] == set(Rule) - {Rule.DETERMINISTIC}


# -- necessity of the rules of publications ----------------------------------------------------


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
    ((_, question),) = u.ask("v")
    for _, answer in v.receive(question):
        u.receive(answer)
    assert (u.ask("v") == []) is on


@both_ways
def test_T10_wrong_digest_is_found_and_corrected(on: bool) -> None:
    party = Party("u", [P("00"), P("01")], limited(switched(Rule.SCRUB, on)))
    party.replica.index().corrupt({ALL: bytes(DIGEST_BYTES)})
    party.ask("v")
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
    """The flood announces nothing, so only anti-entropy spreads the publications."""
    rules = switched(Rule.REPAIR_OVER_SHORTCUTS, on)
    config = ProtocolConfig(rules=rules, spread=Spread.FLOOD)
    assert (rounds_until_all_have_all(64, 1, config) <= 25) is on  # 12, else over 40


@both_ways
def test_R17_announced_repairs_are_faster_than_repairs(on: bool) -> None:
    config = ProtocolConfig(rules=switched(Rule.ANNOUNCE_REPAIRS, on))
    assert (rounds_until_all_have_all(64, 60, config) <= 10) is on  # 6, else 17 to 24
