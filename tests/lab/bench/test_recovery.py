"""How many rounds recovery takes, beside what is wanted."""

from skipring.lab.bench import recovery
from skipring.world.adversaries import ADVERSARIES


def test_there_is_a_row_for_each_adversary_and_a_ratio() -> None:
    rows = list(recovery.measure(5, seed=1))
    assert [row["adversary"] for row in rows] == list(ADVERSARIES)
    for row in rows:
        assert row["converged"] == row["seeds"] == recovery.SEEDS
        assert 0 <= row["rounds_min"] <= row["rounds"]
    found = recovery.ratios(rows)
    assert {name for name in found if name.endswith("_reached")} == {
        f"rounds_{adversary}_reached" for adversary in ADVERSARIES
    }


def test_each_adversary_has_its_own_bound_and_who_never_recovers_has_not_reached_it() -> None:
    rounds = {"A05": 20, "A18b": 180, "A43": 25, "A15": None}
    rows = [{"adversary": adversary, "rounds": count} for adversary, count in rounds.items()]
    assert recovery.ratios(rows) == {
        "rounds_A05": 20,
        "rounds_A05_at_most": 30,
        "rounds_A05_reached": 1.5,
        "rounds_A18b": 180,
        "rounds_A18b_at_most": 90,
        "rounds_A18b_reached": 0.5,
        "rounds_A43": 25,
        "rounds_A43_at_most": 50,
        "rounds_A43_reached": 2.0,
        "rounds_A15_reached": 0.0,
    }
