"""Hypotheses and lemmas: facts about starts, the potential, and sessions of two tries."""

from __future__ import annotations

from random import Random

import pytest

from skipring.core.config import Mode, ProtocolConfig
from skipring.lab.experiments.lemmas import (
    Potential,
    StartFacts,
    is_database_valid,
    livelock_measures,
    potential_measures,
    session_measures,
    start_facts,
)
from skipring.world.adversaries import ADVERSARIES
from skipring.world.snapshot import Snapshot


def start_of(code: str) -> Snapshot:
    return ADVERSARIES[code].build(16, Random(f"{code}/0"))


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("A05", StartFacts()),
        ("A00", StartFacts(start_connected=False)),
        ("A08", StartFacts(start_connected=False)),
        ("A17", StartFacts(start_crashed=True)),
        ("A45", StartFacts(start_leavers=True)),
        ("A47", StartFacts(start_tries_wrong=True)),
    ],
)
def test_start_has_the_facts_of_its_construction(code: str, facts: StartFacts) -> None:
    assert start_facts(start_of(code)) == facts


@pytest.mark.parametrize(
    ("code", "is_valid"),
    [("A05", True), ("A01", False), ("A02", False), ("A03", False), ("A04", False)],
)
def test_each_condition_of_a_corrupted_database_is_found(code: str, is_valid: bool) -> None:
    assert is_database_valid(start_of(code)) is is_valid


def test_livelock_is_measured_with_its_rounds() -> None:
    start = ADVERSARIES["A22"].build(8, Random("A22/0"))
    end, measures, samples = livelock_measures(start, 300)
    assert not end.is_legitimate
    assert not end.is_full
    assert len(samples) == measures["cycle_start"] + measures["cycle_length"] + 1
    assert measures["layers_least"] <= measures["layers_most"] < 5
    assert measures["healed_by_R1"] == 1  # decision 0003


def test_dead_neighbours_stay_without_rule_B13() -> None:
    """Decision 0012: A36, a quarter has crashed; rule R1 alone leaves them."""
    _, measures, _ = livelock_measures(ADVERSARIES["A36"].build(8, Random("A36/0")), 300)
    names = ("healed_by_R1", "healed_by_B13", "healed_by_both")
    assert [measures[name] for name in names] == [0, 1, 1]


# -- the potential ---------------------------------------------------------------------------


def test_potential_is_the_number_of_publications_missing_along_ring_edges() -> None:
    potential = Potential("abc", {"a": {b"1", b"2"}, "b": {b"2"}, "c": set()})
    assert potential.total == 1 + 2 + 1  # (a, b), (a, c), (b, c); both directions of each edge
    assert potential.positive_edges() == 3
    potential.on_step("b", {b"1", b"2"})
    assert (potential.total, potential.rises, potential.mismatches) == (4, 0, 0)
    potential.on_step("c", {b"1", b"2"})
    assert (potential.total, potential.rises, potential.mismatches) == (0, 0, 0)


def test_publication_that_jumps_over_members_raises_the_potential() -> None:
    potential = Potential("abcd", {"a": {b"1"}, "b": set(), "c": set(), "d": set()})
    potential.on_step("c", {b"1"})
    assert (potential.rises, potential.missing_rises) == (1, 0)


@pytest.mark.parametrize("mode", [Mode.PAPER, Mode.FIXED, Mode.FAST])
def test_potential_rises_only_with_comparisons_over_shortcuts(mode: Mode) -> None:
    rounds, measures = potential_measures(ProtocolConfig.of(mode), 16, 20, 0, 300)
    assert rounds is not None
    assert measures["phi_start"] > measures["phi_end"] == 0
    assert (measures["phi_rises"] > 0) is (mode is Mode.FAST)
    assert measures["missing_rises"] == measures["phi_mismatches"] == 0


# -- sessions --------------------------------------------------------------------------------


def test_sessions_end_with_nothing_missing_although_the_second_claim_is_false() -> None:
    found = [session_measures(5, seed) for seed in range(30)]
    differing = [it for it in found if it["differs"]]
    assert len(differing) > 15
    assert all(it["missing_end"] == 0 for it in differing)
    assert {it["equal"] for it in differing} == {0.0, 1.0}
