"""Statistics of runs, from scipy: bounds, survival curves and models of growth.

All bounds are two-sided and hold with 95 %. Shares: Clopper and Pearson. Means and bands: Student.
Medians: order statistics, which assume nothing of the distribution. Survival: Kaplan and Meier,
with Greenwood's log-log bounds. Models of growth are compared by Akaike's criterion (AIC).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, isnan, log, nan, sqrt
from typing import Any, Final

import numpy as np
from msgspec import Struct
from scipy import stats

CONFIDENCE: Final = 0.95
_TAIL: Final = (1 - CONFIDENCE) / 2


class Bounds(Struct, frozen=True):
    """Estimate and the range of the true value with 95 %; nan if there are too few values."""

    value: float
    low: float
    high: float


def share_bounds(good: int, runs: int) -> Bounds:
    """Return the true share if ``good`` of ``runs`` were good (Clopper and Pearson)."""
    if runs <= 0:
        return Bounds(nan, 0.0, 1.0)
    interval = stats.binomtest(good, runs).proportion_ci(CONFIDENCE, method="exact")
    return Bounds(good / runs, float(interval.low), float(interval.high))


def mean_bounds(values: Sequence[float]) -> Bounds:
    """Return the true mean (Student); a single value has no bounds."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return Bounds(mean, nan, nan)
    half = float(stats.t.isf(_TAIL, len(values) - 1) * stats.sem(values))
    return Bounds(mean, mean - half, mean + half)


class BoundSample(Struct, frozen=True):
    """Values of some runs in order; inf for runs that never reached one."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], runs: int) -> BoundSample:
        """Return the distribution of ``runs`` runs, of which some have a value."""
        return cls((*sorted(values), *[inf] * (runs - len(values))))

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return len(self.values)

    @property
    def finite(self) -> tuple[float, ...]:
        """Return the values of the runs that have one."""
        return tuple(value for value in self.values if isfinite(value))

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share of the runs did not exceed."""
        return self.values[max(0, -int(-share * self.runs // 1) - 1)]

    @property
    def mean(self) -> Bounds:
        """Return the mean with its bounds; inf if a run never reached a value."""
        whole = len(self.finite) == self.runs
        return mean_bounds(self.values) if whole else Bounds(inf, nan, nan)

    @property
    def median(self) -> Bounds:
        """Return the middle value, and the order statistics around the true median."""
        skipped = int(stats.binom.ppf(_TAIL, self.runs, 0.5)) - 1
        if skipped < 0:
            return Bounds(self.quantile(0.5), nan, nan)
        return Bounds(self.quantile(0.5), self.values[skipped], self.values[-1 - skipped])


# --- survival --------------------------------------------------------------------------


class Survival(Struct, frozen=True):
    """Share of runs that have not ended after a number of rounds."""

    rounds: float
    share: Bounds


def survival(ends: Sequence[tuple[float, bool]]) -> list[Survival]:
    """Return Kaplan and Meier's curve of (rounds, has ended); other runs are censored."""
    ended = [rounds for rounds, has_ended in ends if has_ended]
    censored = [rounds for rounds, has_ended in ends if not has_ended]
    begin = share_bounds(len(ends), len(ends))
    last = max(rounds for rounds, _ in ends)
    curve = [Survival(0.0, begin)]
    if ended:
        curve += _steps(ended, censored, len(ends))
    return [*curve, Survival(last, curve[-1].share)]


def _steps(ended: Sequence[float], censored: Sequence[float], runs: int) -> list[Survival]:
    """Return the curve after each end; Greenwood has no bounds once every run has ended."""
    function = stats.ecdf(stats.CensoredData(uncensored=ended, right=censored)).sf
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        interval = function.confidence_interval(CONFIDENCE, method="log-log")
    none_left = share_bounds(0, runs)
    steps = []
    for rounds in sorted(set(ended)):
        share, low, high = (
            float(curve.evaluate(rounds)) for curve in (function, interval.low, interval.high)
        )
        bounds = none_left if share <= 0 else Bounds(share, *_known(share, low, high))
        steps.append(Survival(rounds, bounds))
    return steps


def _known(share: float, low: float, high: float) -> tuple[float, float]:
    return (0.0 if isnan(low) else low), (max(share, 1.0) if isnan(high) else high)


# --- models of growth ------------------------------------------------------------------

Transform = Callable[[Any], Any]

# The bounded models come first, the slower growth before the faster.
MODELS: Final[Mapping[str, Transform]] = {
    "constant": np.zeros_like,
    "bounded": lambda n: -1 / n,
    "log n": np.log2,
    "√n": np.sqrt,
    "n": lambda n: n,
}
BOUNDED: Final = ("constant", "bounded")
GROWTH: Final = ("constant", "log n", "√n", "n")  # of rounds
# Burnham and Anderson: a model this much worse has essentially no support.
AIC_DECIDES: Final = 10.0


class Model(Struct, frozen=True):
    """Least-squares fit of a + b f(n), and its AIC."""

    name: str
    intercept: float
    slope: float
    aic: float
    points: int
    centre: float  # mean of f(n)
    spread: float  # sum of squares of f(n) around its mean
    deviation: float  # residual standard deviation

    def at(self, n: float) -> Bounds:
        """Return the fitted mean at n, with its band."""
        x = float(MODELS[self.name](np.asarray(float(n))))
        value = self.intercept + self.slope * x
        leverage = (x - self.centre) ** 2 / self.spread if self.spread > 0 else 0.0
        freedom = self.points - (1 if self.spread == 0 else 2)
        half = float(stats.t.isf(_TAIL, freedom)) * self.deviation
        half *= sqrt(1 / self.points + leverage)
        return Bounds(value, value - half, value + half)


def fitted(points: Sequence[tuple[float, float]], names: Sequence[str]) -> list[Model]:
    """Return the models of (n, value) by AIC, the best first; none with fewer than three n."""
    if len({n for n, _ in points}) < 3:  # noqa: PLR2004  (two leave every model with a slope perfect)
        return []
    n, y = np.array([n for n, _ in points], float), np.array([value for _, value in points], float)
    return sorted((_fit(name, n, y) for name in names), key=lambda model: model.aic)


def _fit(name: str, n: Any, y: Any) -> Model:  # noqa: ANN401  (numpy arrays)
    x, count = MODELS[name](n), len(y)
    spread = float(np.sum((x - x.mean()) ** 2))
    slope = float(stats.linregress(x, y).slope) if spread > 0 else 0.0
    intercept = float(y.mean() - slope * x.mean())
    rest = float(np.sum((y - intercept - slope * x) ** 2))
    free = 1 if spread == 0 else 2
    # Equal values have no residuals, and no logarithm.
    floor = count * (1e-6 * max(1.0, float(np.abs(y).max()))) ** 2
    aic = count * log(max(rest, floor) / count) + 2 * (free + 1)
    return Model(
        name, intercept, slope, aic, count, float(x.mean()), spread, sqrt(rest / (count - free))
    )
