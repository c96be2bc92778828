"""Section 3.2.1: assignment of labels to subscribers, and its cost at the supervisor."""

from fractions import Fraction
from math import pi, prod, sqrt
from random import Random

import pytest

from skipring.core.config import Rules
from skipring.core.labels import Label
from skipring.core.messages import UNRECORDED, GetConfiguration, SetConfiguration, Subscribe
from skipring.core.peers import SUPERVISOR
from skipring.core.ring import asks_supervisor
from skipring.core.state import SubscriberState, legitimate_state
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import node_names
from tests.support.conversations import at, place, simulation, standing_ring
from tests.support.machines import (
    FAST,
    FIXED,
    PAPER,
    Scripted,
    asked,
    edges,
    hear,
    ring_at,
    subscriber,
    supervisor,
)

every_mode = pytest.mark.parametrize("rules", [PAPER, FIXED, FAST], ids=["paper", "fixed", "fast"])

ASK, REFRAIN = 0, 1  # draws with which a node asks the supervisor, and does not
MIDDLE = legitimate_state(2, "abm")  # m has the label 01 between a and b


# -- the four actions ------------------------------------------------------------------------


@every_mode
def test_i_subscriber_without_a_label_asks_to_be_integrated(rules: Rules) -> None:
    """(i): v.label = none. The node does nothing else, whatever it remembers (B8)."""
    state = SubscriberState(left=at("a@0"), right=at("b@1"), ring=at("c@11"))
    assert subscriber(state, rules=rules).tick() == [(SUPERVISOR, Subscribe("m"))]


@every_mode
def test_i_supervisor_integrates_it_and_sends_its_configuration(rules: Rules) -> None:
    host = supervisor("a", "b", rules=rules)
    said = host.receive(Subscribe("m"), "m") + host.tick()
    assert ("m", place("a@0", "01", "b@1")) in said
    assert "m" in host.machine.roster


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rare", [False, True], ids=["k", "k+1"])
def test_ii_subscriber_with_a_label_of_k_bits_asks_once_in_2_to_the_k_times_k_squared(
    k: int, rare: bool
) -> None:
    """(ii): probability 1/(2^k k^2). The exponent here is k+1, see the theorem below."""
    label, chance = Label.nth(2 ** (k - 1)), Scripted(ASK)
    assert label.length == k
    assert asks_supervisor(label.length, chance, rare=rare)
    assert Fraction(1, prod(chance.odds)) == probability(label, rare=rare)
    assert not asks_supervisor(label.length, Scripted(REFRAIN), rare=rare)


@every_mode
def test_ii_request_is_about_its_own_configuration(rules: Rules) -> None:
    lucky, unlucky = (
        subscriber(MIDDLE, rules=rules, rng=Scripted(draw)) for draw in (ASK, REFRAIN)
    )
    assert asked("m")[0] in lucky.tick()
    assert not any(to == SUPERVISOR for to, _ in unlucky.tick())


@pytest.mark.parametrize("rare", [False, True], ids=["k", "k+1"])
def test_ii_longest_labels_practically_never_ask_and_cause_no_overflow(rare: bool) -> None:
    """Section 3.2.1: "such that the probability becomes negligible"; 2^-64 needs no float."""
    label = Label.parse("0" * 63 + "1")
    rng = Random("3.2.1")
    assert not any(asks_supervisor(label.length, rng, rare=rare) for _ in range(10_000))
    assert asks_supervisor(label.length, Scripted(ASK), rare=rare)


@every_mode
def test_ii_labelled_unrecorded_node_becomes_recorded_once_it_asks(rules: Rules) -> None:
    """The paper's supervisor integrates every node that asks; here the node decides (S1)."""
    stranger = subscriber(MIDDLE, rules=rules)
    host = supervisor("a", "b", rules=rules)
    said = host.receive(GetConfiguration("m"), "m") + host.tick()
    assert ("m", UNRECORDED) in said
    assert (SUPERVISOR, Subscribe("m")) in stranger.receive(UNRECORDED)
    said = host.receive(Subscribe("m"), "m") + host.tick()
    assert ("m", place("a@0", "01", "b@1")) in said


@every_mode
@pytest.mark.parametrize(
    ("closer", "given"),
    [
        ({"left": at("v@0111")}, place("p@011", "1", "q@11")),
        ({"left": at("v@011")}, place("p@011", "1", "q@11")),  # as close: <= (B12)
        ({"right": at("v@101")}, place("p@01", "1", "q@11")),
        ({"wrap": at("v@111")}, place("z@11", "0", "q@01")),  # closer round the circle (B11)
    ],
    ids=["left", "left, as close", "right", "ring"],
)
def test_iii_neighbour_closer_than_the_configuration_says_is_reported(
    rules: Rules, closer: dict, given: SetConfiguration
) -> None:
    """(iii): w requests the supervisor to send the correct configuration to w.left."""
    ring = ring_at(given.label.bits, rules=rules, **closer)
    assert asked("v")[0] in hear(ring, given)


@pytest.mark.parametrize("rules", [PAPER, FIXED], ids=["paper", "fixed"])
def test_iii_neighbour_farther_away_is_not_reported(rules: Rules) -> None:
    ring = ring_at("1", left=at("v@01"), rules=rules)
    assert asked("v")[0] not in hear(ring, place("p@011", "1", "q@11"))


def test_iii_every_displaced_neighbour_is_reported_with_all_rules() -> None:
    """R10: otherwise it is delegated hop by hop."""
    ring = ring_at("1", left=at("v@01"))
    assert hear(ring, place("p@011", "1", "q@11")) == asked("v")
    assert edges(ring) == (at("p@011"), at("q@11"), None)


@every_mode
def test_iii_neighbour_that_the_configuration_confirms_is_not_reported(rules: Rules) -> None:
    ring = ring_at("01", left=at("a@0"), right=at("b@1"), rules=rules)
    assert hear(ring, place("a@0", "01", "b@1")) == []


@every_mode
@pytest.mark.parametrize("bits", ["0", "01", "0" * 60 + "1"])
def test_iv_node_that_seems_minimal_asks_with_probability_one_half(rules: Rules, bits: str) -> None:
    """(iv): based only on its local information, that is, it has no left neighbour (B14)."""
    chance = Scripted(ASK)
    state = SubscriberState(label=Label.parse(bits), right=at("b@1"), ring=at("c@11"))
    questions = [
        message
        for to, message in subscriber(state, rules=rules, rng=chance).tick()
        if to == SUPERVISOR
    ]
    assert [question.node for question in questions] == ["m"]
    assert chance.odds == [2]


@every_mode
def test_iv_node_with_a_left_neighbour_does_not_seem_minimal(rules: Rules) -> None:
    chance = Scripted(REFRAIN)
    subscriber(MIDDLE, rules=rules, rng=chance).tick()
    assert chance.odds == [2 ** (2 + rules.rare_requests)]  # (ii) for two bits


# -- the theorem on requests per timeout interval --------------------------------------------


def probability(label: Label, *, rare: bool) -> Fraction:
    return Fraction(1, 2 ** (label.length + rare) * label.length**2)


def expected_requests(n: int, *, rare: bool) -> Fraction:
    """Return the expected requests of one interval of a legitimate ring: actions (ii) and (iv)."""
    others = (probability(Label.nth(x), rare=rare) for x in range(1, n))
    return Fraction(1, 2) + sum(others)


@pytest.mark.parametrize(
    ("n", "expected"), [(2, "1"), (4, "9/8"), (16, "349/288"), (64, "8969/7200")]
)
def test_requests_of_the_paper_reach_one_per_interval(n: int, expected: str) -> None:
    """The theorem says "less than 1"; its proof overlooks that two labels have length 1."""
    assert expected_requests(n, rare=False) == Fraction(expected) >= 1


def test_requests_of_the_paper_grow_towards_1_32() -> None:
    """1 + the sum of 1/(2k^2) from 2 on: still constant on expectation."""
    limit = 1 + (pi**2 / 6 - 1) / 2
    values = [expected_requests(2**k, rare=False) for k in range(1, 13)]
    assert values == sorted(values)
    assert 1.28 < values[-1] < limit < 1.3225


def test_requests_stay_below_0_912_with_exponent_k_plus_1() -> None:
    """The theorem holds for this implementation: 3/4 + the sum of 1/(4k^2) from 2 on."""
    limit = 3 / 4 + (pi**2 / 6 - 1) / 4
    values = [expected_requests(2**k, rare=True) for k in range(1, 13)]
    assert values == sorted(values)
    assert 0.89 < values[-1] < limit < 0.912


def requests_per_interval(mode: str, n: int, intervals: int) -> tuple[float, float]:
    """Return the measured mean and the half-width of its 99.9 % bound."""
    running = simulation(standing_ring(n), mode=mode, seed=321)
    for _ in range(intervals):
        running.run_round()
    mean = running.world.sent[GetConfiguration] / intervals
    # Independent draws: the variance of their sum is at most its mean.
    return mean, 3.09 * sqrt(mean / intervals)


def test_measured_requests_of_the_paper_exceed_one() -> None:
    """One-sided bound of 99.9 % over 3000 intervals at n = 16."""
    mean, margin = requests_per_interval("paper", 16, 3000)
    assert mean - margin > 1
    assert abs(mean - expected_requests(16, rare=False)) < 1.5 * margin


@pytest.mark.heavy
@pytest.mark.parametrize("mode", [pytest.param("fixed", marks=pytest.mark.slow), "fast"])
def test_measured_requests_stay_below_the_bound(mode: str) -> None:
    """The same for exponent k+1; no rule adds a request in a legitimate state."""
    mean, margin = requests_per_interval(mode, 8, 6_000)
    assert mean + margin < 0.912
    assert abs(mean - expected_requests(8, rare=True)) < 1.5 * margin


# -- the proof sketch: how a component becomes recorded ----------------------------------------


@pytest.mark.parametrize("mode", ["fixed", "fast"])
def test_ring_of_negligible_probability_becomes_recorded_starting_at_its_minimum(mode: str) -> None:
    """Action (iv) records the minimum, action (iii) its neighbours, and so on around the ring."""
    start = ADVERSARIES["A07"].build(9, Random("3.2.1"))
    assert all(state.label.length == 60 for state in start.subscribers.values())
    assert simulation(start, mode=mode, max_rounds=200).run().is_good


def test_expected_requests_agree_with_the_labels_of_a_legitimate_ring() -> None:
    """The formula uses labels; these machines have them."""
    for rules, rare in ((PAPER, False), (FAST, True)):
        drawn = []
        for index in range(16):
            chance = Scripted(REFRAIN)
            state = legitimate_state(index, [*node_names(index), "m", *node_names(16)[index + 1 :]])
            subscriber(state, rules=rules, rng=chance).tick()
            drawn += chance.odds
        lengths = [Label.nth(x).length for x in range(1, 16)]
        assert drawn == [2, *(2 ** (length + rare) for length in lengths)]
