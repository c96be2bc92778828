"""Sections about healing: their runs, figure and explanation.

A section without runs has no figure and states that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import (
    COMMON,
    HEALING,
    IN_THE_MODEL,
    Group,
    beside_all_rules,
    ends,
    groups,
    groups_of_each,
    on_common_ground,
    together,
)
from skipring.lab.experiments.figures import (
    by_adversary,
    by_n,
    by_row,
    median_point,
    median_table,
    model_figure,
    share_point,
    share_table,
    sizes_of,
    survival_figure,
    title_of,
)
from skipring.lab.experiments.lemmas import LAYERS
from skipring.lab.experiments.statistics import AIC_DECIDES, GROWTH, Model, fitted, survival
from skipring.report.page import Section
from skipring.report.plots import Axis
from skipring.report.tables import Table, number, percent

ROUNDS: Final = "rounds"
_OF_FAST: Final = f"mode = '{Mode.FAST}'"
_PLAIN: Final = (
    f"{HEALING} AND {IN_THE_MODEL} AND {_OF_FAST} AND scheduler = 'random' AND publications = 0"
)
_ROUNDS_AXIS: Final = Axis("rounds until legitimate")
LINES_MAX: Final = 7  # Guess: more lines are hard to tell apart.
RANGE_NOTE: Final = "Dots are medians, bars go from the fastest to the slowest run."
COMMON_NOTE: Final = "Only starts, sizes and schedulers with runs in all modes."


_PAIRS_NOTE: Final = (
    "Each run is compared with the run that differs from it in nothing but the rule. "
    f"{RANGE_NOTE} A rule can cost a little from starts that it does not address."
)


def missing(key: str, title: str, what: str) -> Section:
    """Return the section for a figure without runs in the matrix."""
    return Section(key, title, f"{title}: this matrix has no {what}.")


# --- convergence -----------------------------------------------------------------------


def rounds_by_n(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about rounds against n per adversary, as lines and as rows."""
    found = groups(runs.filter(_PLAIN), ["adversary", "n"], ROUNDS)
    title, rows_title = "Rounds against n, by adversary", "Rounds, adversary by adversary"
    if not found:
        return (missing("rounds-by-n", title, "runs of kind converge in mode fast"),)
    table = median_table(found, ("adversary", "n"), ROUNDS)
    return (
        Section(
            "rounds-by-n",
            title,
            _growth(found, "the median of the slowest adversary"),
            by_n(_slowest_alone(found), "adversary", _ROUNDS_AXIS, median_point, ROUNDS),
            notes=(f"Mode fast, scheduler random, no loss. {RANGE_NOTE}",),
        ),
        Section(
            "rounds-by-adversary",
            rows_title,
            _slowest(found),
            by_adversary(found),
            table,
            (f"Mode fast, scheduler random, no loss. {RANGE_NOTE}",),
        ),
    )


def _slowest_alone(found: Sequence[Group]) -> list[Group]:
    """Return the groups of the slowest adversaries, and all others as one: more are unreadable."""
    worst: dict[object, float] = {}
    for group in found:
        code = group.at["adversary"]
        worst[code] = max(worst.get(code, 0.0), _median(group))
    named = sorted(worst, key=lambda code: -worst[code])[:LINES_MAX]
    others = [group for group in found if group.at["adversary"] not in named]
    name = f"{len({group.at['adversary'] for group in others})} others"
    return [
        *(group for group in found if group.at["adversary"] in named),
        *(
            Group({"adversary": name, "n": n}, together(it for it in others if it.at["n"] == n))
            for n in sizes_of(others)
        ),
    ]


def _growth(found: Sequence[Group], what: str) -> str:
    """Return a sentence about the growth of the worst median with n."""
    worst = {n: max(_median(group) for group in found if group.at["n"] == n) for n in _whole(found)}
    first, last = min(worst), max(worst)
    start = f"{number(worst[first])} rounds at n = {first}"
    if first == last:
        return f"At n = {first} {what} is {number(worst[first])} rounds."
    return f"From n = {first} to n = {last} {what} goes from {start} to {number(worst[last])}."


def growth(runs: DataFrame) -> tuple[Section, ...]:
    """Return the section about models of rounds against n, by adversary."""
    key, title = "growth", "Models of rounds against n, by adversary"
    models = _models(groups(runs.filter(_PLAIN), ["adversary", "n"], ROUNDS))
    if not models:
        return (missing(key, title, "adversaries with three sizes in mode fast"),)
    largest = max(size for _, sizes in models.values() for size in sizes)
    rows = [
        (
            title_of(code),
            f"{found[0].points:,}",
            *_sizes(sizes),
            found[0].name,
            found[1].name,
            number(found[1].aic - found[0].aic),
            number(found[0].intercept),
            number(found[0].slope),
            _band(found[0], sizes[-1]),
        )
        for code, (found, sizes) in models.items()
    ]
    slowest = sorted(models.items(), key=lambda it: -it[1][0][0].at(largest).value)[:_BANDS_MAX]
    shown = [(code, found[0]) for code, (found, _) in slowest]
    sizes = sorted({size for _, (_, own) in slowest for size in own})
    return (
        Section(
            key,
            title,
            _best(models),
            model_figure(shown, sizes),
            Table(_GROWTH_HEADINGS, tuple(rows), frozenset(_GROWTH_HEADINGS) - _GROWTH_TEXTS),
            (_MODEL_NOTE,),
        ),
    )


_MODEL_NOTE: Final = (
    "Each model is a + b f(n) with f one of 1 (constant), log₂ n, √n and n, fitted by least "
    "squares to the rounds of all runs; AIC compares them, and a difference of 10 decides. The "
    "band is that of the mean (Student). The figure shows the slowest adversaries. Mode fast, "
    "scheduler random, no loss."
)
_BANDS_MAX: Final = 6  # Guess: more bands hide each other.
_GROWTH_HEADINGS: Final = (
    *("adversary", "runs", "n from", "to", "best model", "next", "AIC of the next"),
    *("a", "b", "mean at the largest n (95 %)"),
)
_GROWTH_TEXTS: Final = {"adversary", "best model", "next"}


def _models(found: Sequence[Group]) -> dict[str, tuple[list[Model], list[int]]]:
    """Return the models and sizes of each adversary that always heals at three sizes or more."""
    models = {}
    for code in dict.fromkeys(str(group.at["adversary"]) for group in found):
        own = [group for group in found if group.at["adversary"] == code]
        points = [(float(group.at["n"]), value) for group in own for value in group.sample.finite]
        fits = fitted(points, GROWTH)
        if fits and all(len(group.sample.finite) == group.sample.runs for group in own):
            models[code] = fits, sizes_of(own)
    return models


def _sizes(sizes: Sequence[int]) -> tuple[str, str]:
    return number(sizes[0]), number(sizes[-1])


def _band(model: Model, n: int) -> str:
    mean = model.at(n)
    return f"{number(mean.value)} ({number(mean.low)} to {number(mean.high)})"


def _best(models: Mapping[str, tuple[list[Model], list[int]]]) -> str:
    best = Counter(found[0].name for found, _ in models.values())
    decided = sum(found[1].aic - found[0].aic >= AIC_DECIDES for found, _ in models.values())
    texts = [f"{name} for {best[name]}" for name in GROWTH if best[name]]
    return (
        f"The best model of rounds against n is {', '.join(texts)} of {len(models)} adversaries; "
        f"for {decided} of them it is better than the next by at least 10 in AIC."
    )


def _whole(found: Sequence[Group]) -> list[int]:
    """Return the sizes with runs from the most adversaries."""
    counts = Counter(int(group.at["n"]) for group in found)
    return sorted(n for n, count in counts.items() if count == max(counts.values()))


def _slowest(found: Sequence[Group]) -> str:
    largest = [group for group in found if group.at["n"] == _whole(found)[-1]]
    worst = max(largest, key=_median)
    usual = sorted(group.sample.quantile(0.5) for group in largest)[len(largest) // 2]
    return (
        f"At n = {worst.at['n']} the slowest start is {title_of(worst.at['adversary'])}: half of "
        f"its runs take {number(worst.sample.quantile(0.5))} rounds or fewer, against "
        f"{number(usual)} for the adversary in the middle."
    )


def survival_curves(runs: DataFrame) -> tuple[Section, ...]:
    """Return the section about the survival curve P(not legitimate at t) of each mode."""
    key, title = "survival", "Share of runs that are not legitimate after t rounds"
    found = [
        (str(row["mode"]), list(survival([tuple(end) for end in row["ends"]])))
        for row in sorted(ends(runs.filter(COMMON), ["mode"]).collect())
    ]
    if not found:
        return (missing(key, title, "runs of kind converge that all modes share"),)
    last = {mode: curve[-1] for mode, curve in found}
    texts = [
        f"in mode {mode} {percent(step.share.value)} are still not legitimate after "
        f"{number(step.rounds)}"
        for mode, step in last.items()
    ]
    reading = f"Of the same starts, {'; '.join(texts)} rounds."
    note = (
        "Kaplan and Meier, with 95 % bounds; a run that has not finished within its limit of "
        "rounds is censored there. "
    )
    return (Section(key, title, reading, survival_figure(found), notes=(note + COMMON_NOTE,)),)


def layers(runs: DataFrame) -> tuple[Section, ...]:
    """Return the section about the rounds until each layer stays right."""
    key, title = "layers", "Rounds until each layer is correct"
    since = [
        F.struct(
            F.lit(f"{layer} {_LAYER_NAMES[layer]}").alias("what"),
            F.col(f"since_{layer}").alias("since"),
        )
        for layer in LAYERS
    ]
    each = runs.filter(_PLAIN).select("n", F.inline(F.array(*since)))
    found = groups(each, ["what", "n"], "since")
    if not any(group.sample.finite for group in found):
        return (missing(key, title, "rounds of runs of kind converge in mode fast"),)
    biggest = max(sizes_of(found))
    texts = [
        f"{group.at['what']} {number(group.sample.quantile(0.5))}"
        for group in found
        if group.at["n"] == biggest
    ]
    reading = (
        f"At n = {biggest} the median round since which a layer and all below it stay correct "
        f"is: {', '.join(texts)}."
    )
    figure = by_n(found, "what", Axis("rounds until permanently correct"), median_point, ROUNDS)
    table = median_table(found, ("what", "n"), ROUNDS)
    return (Section(key, title, reading, figure, table, (RANGE_NOTE,)),)


_LAYER_NAMES: Final = {
    "L0": "database",
    "L1": "labels",
    "L2": "ring",
    "L3": "shortcuts",
    "L4": "leavers",
}


# --- ablation --------------------------------------------------------------------------


def ablation(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about the modes paper, fixed and fast: legitimate runs, and rounds."""
    key, title = "modes-share", "Modes: share of legitimate runs"
    found = groups(runs.filter(COMMON), ["mode", "n"], ROUNDS)
    if len({group.at["mode"] for group in found}) < 2:  # noqa: PLR2004  (one alone cannot be compared)
        return (missing(key, title, "starts that more than one mode was tried with"),)
    percent_axis = Axis("runs that became legitimate, %")
    return (
        Section(
            key,
            title,
            _shares(found),
            by_n(found, "mode", percent_axis, share_point, "runs became legitimate"),
            share_table(found),
            (f"Bars are 95 % bounds of Clopper and Pearson. {COMMON_NOTE}",),
        ),
        Section(
            "modes-rounds",
            "Modes: rounds until legitimate",
            _mode_medians(found),
            by_n(found, "mode", _ROUNDS_AXIS, median_point, ROUNDS),
            median_table(found, ("mode", "n"), ROUNDS),
            (
                (
                    f"{RANGE_NOTE} There is no dot if half of the runs did not finish within "
                    f"their limit. {COMMON_NOTE}"
                ),
            ),
        ),
    )


_COINS_NOTE: Final = (
    "Mode deterministic is mode fast with rule D1 (decision 0062). Requests a round are those of "
    f"all subscribers of a legitimate ring. {RANGE_NOTE}"
)


def without_coins(runs: DataFrame) -> tuple[Section, ...]:
    """Return the section about rule D1: modes fast and deterministic from the same starts."""
    key, title = "without-coins", "Counters instead of coins (rule D1)"
    modes = (Mode.FAST, Mode.DETERMINISTIC)
    either = runs.filter(f"{IN_THE_MODEL} AND mode IN {tuple(map(str, modes))}")
    healing = on_common_ground(either.filter(HEALING), "mode")
    found = groups(healing, ["mode", "n"], ROUNDS)
    if len({group.at["mode"] for group in found}) < len(modes):
        return (missing(key, title, "starts in the modes fast and deterministic"),)
    requests = {
        (group.at["mode"], group.at["n"]): group.sample.mean
        for group in groups(
            either.filter("kind = 'steady'"), ["mode", "n"], "measures['requests_per_round']"
        )
    }
    rows = tuple(
        (
            *(str(group.at["mode"]), number(int(group.at["n"])), f"{group.sample.runs:,}"),
            f"{len(group.sample.finite):,}",
            number(group.sample.quantile(0.5)),
            number(group.sample.values[-1]),
            number(mean.value) if (mean := requests.get((group.at["mode"], group.at["n"]))) else "",
        )
        for group in found
    )
    headings = ("mode", "n", "runs", "legitimate", "median rounds", "slowest", "requests a round")
    return (
        Section(
            key,
            title,
            f"{_shares(found)} {_mode_medians(found)}",
            by_n(found, "mode", _ROUNDS_AXIS, median_point, ROUNDS),
            Table(headings, rows, frozenset(headings[1:])),
            (_COINS_NOTE,),
        ),
    )


def _shares(found: Sequence[Group]) -> str:
    texts = []
    for mode in dict.fromkeys(group.at["mode"] for group in found):
        samples = [group.sample for group in found if group.at["mode"] == mode]
        good, total = sum(len(one.finite) for one in samples), sum(one.runs for one in samples)
        texts.append(f"{mode} {good:,} of {total:,} ({percent(good / total)})")
    return f"Legitimate runs from the same starts: {', '.join(texts)}."


def _mode_medians(found: Sequence[Group]) -> str:
    largest = [group for group in found if group.at["n"] == max(sizes_of(found))]
    texts = [f"{group.at['mode']} {number(group.sample.quantile(0.5))}" for group in largest]
    return f"Median rounds at n = {max(sizes_of(found))}: {', '.join(texts)}."


def rule_by_rule(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections that compare runs without one rule with the same runs with all rules."""
    key, title = "rules-share", "Rules: share of legitimate runs without each"
    pairs = beside_all_rules(runs.filter(HEALING))
    named = pairs.withColumn("what", F.concat_ws(" without ", "mode", "without"))
    shares, ratios = groups_of_each(named, ["what"], [ROUNDS, "ratio"])
    shares.sort(key=_share)
    ratios.sort(key=_median, reverse=True)
    if not shares:
        return (missing(key, title, "runs with a rule switched off beside the same with all"),)
    worst, slow = shares[0], ratios[0]
    lost = worst.sample.runs - len(worst.sample.finite)
    return (
        Section(
            key,
            title,
            f"Worst is mode {worst.at['what']}: {lost:,} of {worst.sample.runs:,} runs did not "
            "become legitimate within their limit.",
            by_row(shares, "what", share_point, Axis("runs that became legitimate, %"), "runs"),
            share_table(shares),
            ("Bars are 95 % bounds of Clopper and Pearson.",),
        ),
        Section(
            "rules-rounds",
            "Rules: slowdown without each",
            _slower(slow),
            by_row(
                ratios,
                "what",
                median_point,
                Axis("rounds without it / with it"),
                "times the rounds",
            ),
            median_table(ratios, ("what",), "ratio"),
            (_PAIRS_NOTE,),
        ),
    )


def _slower(slow: Group) -> str:
    ratio = _median(slow)
    if not isfinite(ratio):
        return f"Slowest is mode {slow.at['what']}, in which at least half of the runs never end."
    return f"Slowest is mode {slow.at['what']}: in the median run {number(ratio)} times the rounds."


def _share(group: Group) -> float:
    return len(group.sample.finite) / group.sample.runs


def _median(group: Group) -> float:
    return group.sample.quantile(0.5)
