"""Hypotheses as conditions on runs."""

from skipring.lab.experiments.measures import EXISTING, RELIABLE, all_of


def test_condition_joins_the_conditions_of_all_hypotheses() -> None:
    assert all_of(()) == "true"
    assert all_of((RELIABLE, EXISTING)) == (
        "true AND (loss = 0 AND duplicate = 0) AND (NOT start_crashed)"
    )
