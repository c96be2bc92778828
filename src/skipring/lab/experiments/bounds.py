"""Statistical bounds: exact bounds of shares, means, medians, slopes and survival.

All bounds are two-sided and hold with 95 %. Shares: Clopper and Pearson. Means and slopes: Student.
Medians: order statistics, which assume nothing of the distribution. Survival: Kaplan and Meier,
with the bounds of Clopper and Pearson for as many runs as would show as much (Peto).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import comb, exp, inf, isfinite, lgamma, log, log1p, nan, sqrt
from typing import Final

from msgspec import Struct

CONFIDENCE: Final = 0.95
_TAIL: Final = (1 - CONFIDENCE) / 2
_BISECTIONS: Final = 50  # to 2^-50, far below what is shown
_EXACT_MEDIANS: Final = 1000  # above it the normal approximation is as good as the exact sum
_Z: Final = 1.959964  # the normal distribution's 97.5 % point


class Bounds(Struct, frozen=True):
    """An estimate and where the truth lies with 95 %; nan for what so few values cannot say."""

    value: float
    low: float
    high: float


# --- distributions ---------------------------------------------------------------------


def beta_share(a: float, b: float, x: float) -> float:
    """The beta distribution's share below x (the regularized incomplete beta function)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction below converges slowly
        return 1 - beta_share(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, from its far end (DLMF 8.17.22)."""
    below = 1.0
    terms = 20 + int(2 * sqrt(a + b))  # Measured: enough for 12 digits up to a + b = 10^6.
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        below = 1 + odd / (1 + even / below)
    return 1 / below


def _solve(rising: Callable[[float], float], goal: float) -> float:
    """Where in [0, 1] a rising function reaches ``goal``."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= goal else (middle, high)
    return (low + high) / 2


def _student(freedom: int) -> float:
    """Student's 97.5 % point."""
    share = _solve(lambda x: beta_share(freedom / 2, 0.5, x), 2 * _TAIL)
    return sqrt(freedom * (1 - share) / share)


# --- shares, means, slopes -------------------------------------------------------------


def share_bounds(good: float, runs: float) -> Bounds:
    """The true share if ``good`` of ``runs`` were good (Clopper and Pearson)."""
    if runs <= 0:
        return Bounds(nan, 0.0, 1.0)
    bad = runs - good
    low = _solve(lambda x: beta_share(good, bad + 1, x), _TAIL) if good > 0 else 0.0
    high = _solve(lambda x: beta_share(good + 1, bad, x), 1 - _TAIL) if bad > 0 else 1.0
    return Bounds(good / runs, low, high)


def mean_bounds(values: Sequence[float]) -> Bounds:
    """The true mean (Student); one value alone gives no bounds."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return Bounds(mean, nan, nan)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = _student(count - 1) * sqrt(variance / count)
    return Bounds(mean, mean - half, mean + half)


def slope_bounds(points: Sequence[tuple[float, float]]) -> Bounds:
    """How much y grows with x along the straight line that fits best (Student)."""
    count = len(points)
    x_mean, y_mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    if spread == 0 or count < 3:  # noqa: PLR2004  (two points leave no spread)
        return Bounds(nan, nan, nan)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    rest = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    half = _student(count - 2) * sqrt(rest / (count - 2) / spread)
    return Bounds(slope, slope - half, slope + half)


# --- medians ---------------------------------------------------------------------------


class BoundSample(Struct, frozen=True):
    """What some runs came to, in order; inf for those that never came to it."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], runs: int) -> BoundSample:
        """Return the distribution of ``runs`` runs, of which some have a value."""
        return cls((*sorted(values), *[inf] * (runs - len(values))))

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self.values)

    @property
    def finite(self) -> tuple[float, ...]:
        """The values of those that came to it."""
        return tuple(value for value in self.values if isfinite(value))

    def quantile(self, share: float) -> float:
        """The smallest value that at least this share of the runs did not exceed."""
        return self.values[max(0, -int(-share * self.runs // 1) - 1)]

    @property
    def mean(self) -> Bounds:
        """The mean between its bounds; never, if that is what it was for one of the runs."""
        whole = len(self.finite) == self.runs
        return mean_bounds(self.values) if whole else Bounds(inf, nan, nan)

    @property
    def median(self) -> Bounds:
        """The middle value, and the order statistics that hold the true median between them."""
        skipped = _below_median(self.runs)
        if skipped < 0:
            return Bounds(self.quantile(0.5), nan, nan)
        return Bounds(self.quantile(0.5), self.values[skipped], self.values[-1 - skipped])


def _below_median(runs: int) -> int:
    """How many values can be left out at either end, -1 if even all of them are too few."""
    if runs > _EXACT_MEDIANS:
        return int(runs / 2 - _Z * sqrt(runs) / 2) - 1
    tail, skipped = 0.0, -1
    while True:
        tail += comb(runs, skipped + 1) / 2**runs
        if tail > _TAIL:
            return skipped
        skipped += 1


# --- survival --------------------------------------------------------------------------


class Survival(Struct, frozen=True):
    """Share of runs that have not ended after a number of rounds."""

    rounds: float
    share: Bounds


def survival(ends: Sequence[tuple[float, bool]]) -> Iterator[Survival]:
    """Kaplan and Meier's curve of (rounds, came to it); the others were watched for so long."""
    at_risk = len(ends)
    step = Survival(0.0, Bounds(1.0, share_bounds(at_risk, at_risk).low, 1.0))
    yield step
    for rounds, group in groupby(sorted(ends), key=lambda end: end[0]):
        came = [through for _, through in group]
        if any(came):
            step = Survival(rounds, _survivors(step.share.value, at_risk, sum(came)))
            yield step
        at_risk -= len(came)
    yield Survival(max(rounds for rounds, _ in ends), step.share)


def _survivors(share: float, at_risk: int, came: int) -> Bounds:
    """Return the share that is left after ``came`` of the runs at risk have ended."""
    left = at_risk - came
    share *= left / at_risk
    shown_by = max(left, left / share) if left else at_risk
    bounds = share_bounds(left, shown_by)
    return Bounds(share, bounds.low, bounds.high)
