"""Statistics of runs, compared with statistical tables and with samples of known models."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isnan, log2, sqrt
from random import Random

import pytest

from skipring.lab.experiments.statistics import (
    AIC_DECIDES,
    GROWTH,
    MODELS,
    BoundSample,
    fitted,
    mean_bounds,
    share_bounds,
    survival,
)


@pytest.mark.parametrize(
    ("good", "runs", "low", "high"),
    [
        (10, 10, 0.6915, 1.0),
        (0, 10, 0.0, 0.3085),
        (3, 20, 0.0321, 0.3789),
        (50, 100, 0.3983, 0.6017),
        (999, 1000, 0.9944, 0.99997),
    ],
)
def test_share_has_the_bounds_of_clopper_and_pearson(
    good: int, runs: int, low: float, high: float
) -> None:
    bounds = share_bounds(good, runs)
    assert [bounds.low, bounds.high] == pytest.approx([low, high], abs=1e-4)


@pytest.mark.parametrize(
    ("count", "student"), [(2, 12.7062), (6, 2.5706), (31, 2.0423), (1001, 1.9623)]
)
def test_mean_has_the_bounds_of_student(count: int, student: float) -> None:
    values = [float(number % 2) for number in range(count)]
    mean = sum(values) / count
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    bounds = mean_bounds(values)
    assert bounds.high - bounds.value == pytest.approx(student * deviation / sqrt(count), rel=1e-4)
    assert bounds.value - bounds.low == pytest.approx(bounds.high - bounds.value)


def test_median_is_bounded_by_order_statistics() -> None:
    # Six values: both ends leave out 2 * 1/64 = 3.1 %; with five it would be 6.2 %.
    six = BoundSample.of([6, 5, 4, 3, 2, 1], 6).median
    assert (six.value, six.low, six.high) == (3, 1, 6)
    assert isnan(BoundSample.of([1, 2, 3, 4, 5], 5).median.low)
    hundred = BoundSample.of(list(range(1, 101)), 100).median
    assert (hundred.value, hundred.low, hundred.high) == (50, 40, 61)


def test_runs_without_a_value_count_as_infinite() -> None:
    sample = BoundSample.of([4.0, 2.0], runs=5)
    assert sample.values == (2.0, 4.0, inf, inf, inf)
    assert sample.median.value == inf
    assert sample.mean.value == inf
    assert sample.finite == (2.0, 4.0)


@pytest.mark.parametrize(
    ("ends", "shares"),
    [
        ([(1, True), (2, True), (2, True), (4, True)], [(0, 1), (1, 0.75), (2, 0.25), (4, 0)]),
        # 3/4 are left after round 1; one is censored; of the two others one ends in round 3.
        ([(1, True), (2, False), (3, True), (9, False)], [(0, 1), (1, 0.75), (3, 0.375)]),
    ],
    ids=["all ended", "censored"],
)
def test_survival_counts_a_run_for_as_long_as_it_was_observed(
    ends: list[tuple[float, bool]], shares: list[tuple[float, float]]
) -> None:
    *curve, last = survival(ends)
    assert [(step.rounds, step.share.value) for step in curve] == shares
    assert (last.rounds, last.share.value) == (ends[-1][0], shares[-1][1])


@pytest.mark.parametrize("ended", [0, 3, 5])
def test_survival_has_bounds_around_every_share(ended: int) -> None:
    curve = survival([(float(number + 1), number < ended) for number in range(5)])
    for step in curve:
        assert 0 <= step.share.low <= step.share.value <= step.share.high <= 1


# -- models ----------------------------------------------------------------------------------


def sample(mean: Callable[[float], float]) -> list[tuple[float, float]]:
    chance = Random(1)
    sizes = (8.0, 16.0, 32.0, 64.0, 128.0)
    return [(n, mean(n) + chance.gauss(0, 0.2)) for n in sizes for _ in range(20)]


@pytest.mark.parametrize(
    ("mean", "name"),
    [
        (lambda n: 6 - 20 / n, "bounded"),
        (lambda n: 2 * log2(n), "log n"),
        (lambda n: 2 * sqrt(n), "√n"),
        (lambda n: 0.5 * n, "n"),
    ],
)
def test_model_of_a_sample_is_recognized_and_its_band_is_near_the_mean(
    mean: Callable[[float], float], name: str
) -> None:
    best, second, *_ = fitted(sample(mean), list(MODELS))
    assert best.name == name
    assert second.aic - best.aic > AIC_DECIDES
    for n in (8, 128):
        assert best.at(n).low - 0.1 < mean(n) < best.at(n).high + 0.1


def test_constant_is_the_best_model_of_equal_values() -> None:
    best = fitted([(n, 3.0) for n in (8.0, 16.0, 32.0)] * 5, GROWTH)[0]
    assert (best.name, best.intercept, best.at(16).low) == ("constant", 3.0, 3.0)


def test_two_sizes_are_too_few_for_a_model() -> None:
    assert fitted([(8.0, 1.0), (16.0, 2.0)] * 20, GROWTH) == []
