"""Report of the lab: a page from the tables of a directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct, convert
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.errors import InputError
from skipring.lab.experiments.aggregates import HEALING, Group, groups, prepared
from skipring.lab.experiments.measures import CONNECTED, EXISTING, MODEL, RIGHT_TRIES, all_of
from skipring.lab.experiments.results import ENVIRONMENT, MATRIX, SEARCHED
from skipring.lab.experiments.sections.convergence import (
    ablation,
    growth,
    layers,
    rounds_by_n,
    rule_by_rule,
    survival_curves,
    without_coins,
)
from skipring.lab.experiments.sections.costs import (
    at_rest,
    healing_costs,
    membership,
    overlays,
    publications,
    weather,
)
from skipring.lab.experiments.sections.evaluation import (
    contradictions,
    livelocks,
    method,
    statements,
    threats,
    worst_cases,
)
from skipring.lab.experiments.statistics import share_bounds
from skipring.lab.experiments.verdicts import NOT_MEASURED, Judged, judge
from skipring.report.markdown import FIGURES, write_markdown
from skipring.report.page import HtmlReport, Section, render
from skipring.report.tables import Table, Tone, number, percent
from skipring.storage.data_dir import translate_os_errors

_WHO: Final = {
    Mode.FAST: "Mode fast, all rules",
    Mode.DETERMINISTIC: "Mode deterministic, all rules without coins",
    Mode.FIXED: "Mode fixed, the rules that convergence needs",
    Mode.PAPER: "Mode paper, the pseudocode",
}


# Hypotheses of the theorems about convergence.
WITHIN: Final = (*MODEL, EXISTING, CONNECTED, RIGHT_TRIES)


class Extent(Struct, frozen=True):
    """Size of a matrix."""

    runs: int
    failed: int
    adversaries: int
    n_min: int
    n_max: int
    messages: int
    kinds: frozenset[str]


def extent(runs: DataFrame) -> Extent:
    """Count all runs, including failed ones."""
    row = runs.agg(
        F.count("*"),
        F.count("error"),
        F.count_distinct(F.nullif("adversary", F.lit(""))),
        F.coalesce(F.min("n"), F.lit(0)),
        F.coalesce(F.max("n"), F.lit(0)),
        F.coalesce(F.sum("messages"), F.lit(0)),
        F.collect_set("kind"),
    ).collect()[0]
    count, failed, adversaries, n_min, n_max, messages, kinds = row
    return Extent(count, failed, adversaries, n_min, n_max, messages, frozenset(kinds))


def lead(runs: DataFrame) -> str:
    """Return the main finding: the share of legitimate runs by mode, the best first."""
    found = groups(runs.filter(f"{HEALING} AND {all_of(WITHIN)}"), ["mode"], "rounds")
    if not found:
        return "This matrix has no runs of kind converge, so it has no result about healing."
    order = list(_WHO)
    found.sort(key=lambda group: order.index(Mode(str(group.at["mode"]))))
    return "Runs within the hypotheses of the paper. " + " ".join(map(_group_sentence, found))


def _group_sentence(group: Group) -> str:
    sample, good = group.sample, len(group.sample.finite)
    who = _WHO[Mode(str(group.at["mode"]))]
    bounds = share_bounds(good, sample.runs)
    if good < sample.runs:
        return (
            f"{who}: {good:,} of {sample.runs:,} became legitimate (true share "
            f"{percent(bounds.low)} to {percent(bounds.high)} with 95 %); the others are censored "
            "at their limit."
        )
    return (
        f"{who}: all {sample.runs:,} became legitimate (true share ≥ {percent(bounds.low)} with "
        f"95 %), half of them within {number(sample.quantile(0.5))} rounds, the slowest in "
        f"{number(sample.values[-1])}."
    )


def summary(judged: Sequence[Judged]) -> str:
    """Return how many statements of the paper the runs contradict, support, and leave open."""
    papers = [one for one in judged if not one.statement.is_ours]
    texts = [
        f"runs of {words} contradict {refuted} ({found} cause{'s' if found != 1 else ''}), support "
        f"{_toned(papers, mode, Tone.GOOD)} and leave {_toned(papers, mode, Tone.OPEN)} undecided"
        for mode, words in _BY_MODE.items()
        for refuted, found in [contradictions(judged, mode)]
    ]
    return f"Of {len(papers)} statements of the paper, {'; '.join(texts)}."


_BY_MODE: Final = {
    Mode.PAPER: "the pseudocode (mode paper)",
    Mode.FAST: "all rules (mode fast, with the statements about the graph)",
}


def _toned(judged: Iterable[Judged], mode: Mode, tone: Tone) -> int:
    return sum(one.verdicts.get(mode, NOT_MEASURED).tone is tone for one in judged)


Chapter: TypeAlias = Callable[[DataFrame], tuple[Section, ...]]

_CONVERGE: Final = frozenset({"converge"})
_STEADY: Final = frozenset({"steady"})

TITLE: Final = "skipring: the paper and what was measured"
# The parts of the page after the statements: the chapters of each, and the kinds of runs that they
# need.
PARTS: Final[tuple[tuple[str, tuple[tuple[Chapter, frozenset[str]], ...]], ...]] = (
    (
        "Healing",
        (*((chapter, _CONVERGE) for chapter in (rounds_by_n, growth, survival_curves, layers)),),
    ),
    ("The rules", ((ablation, _CONVERGE), (rule_by_rule, _CONVERGE))),
    ("Without coins", ((without_coins, _CONVERGE | _STEADY),)),
    ("Costs of healing", ((healing_costs, _CONVERGE),)),
    (
        "A legitimate ring",
        (
            (at_rest, _STEADY),
            (membership, frozenset({"subscribe", "unsubscribe", "crash"})),
        ),
    ),
    ("Publications", ((publications, frozenset({"spread"})),)),
    ("Comparison with other overlays", ((overlays, frozenset({"topology"})),)),
    ("Loss, churn and schedulers", ((weather, _CONVERGE),)),
)
# Sections whose reading is also one of the main findings.
_FINDINGS: Final = ("modes-share", "rounds-by-n", "supervisor-steady", "messages-per-delivery")
_FAILED_SHOWN: Final = 50


OPENING: Final = """\
# The paper and what was measured

An evaluation of every theorem, lemma and claim of the paper by runs of the experiment lab. This
page is written by these commands and not by hand:

```console
$ skipring lab run scenarios/lab-small.toml --out DIR
$ skipring lab report DIR --out docs/paper-results.md
```

The same matrix gives the same rows on any machine and any number of partitions, and so the same
page. [lab.md](lab.md) describes the tables of the lab, [paper-map.md](paper-map.md) the code and
tests of each statement; numbers of decisions lead to [decisions](decisions/README.md). Single runs
of 100,000 and 1,000,000 subscribers are in [simulation.md](simulation.md).
"""


def write_report(spark: SparkSession, directory: Path, out: Path) -> None:
    """Write the page about the tables of a lab: Markdown for a name in .md, else HTML."""
    page = make_page(spark, directory)
    with translate_os_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".md":
            write_markdown(page, OPENING, out)
            if (recorded := directory / ENVIRONMENT).is_file():
                (out.parent / FIGURES / ENVIRONMENT).write_bytes(recorded.read_bytes())
        else:
            out.write_text(render(page), encoding="utf-8")


def make_page(spark: SparkSession, directory: Path) -> HtmlReport:
    """Return the page about the tables of a lab."""
    all_runs = _table(spark, directory, "runs")
    whole = extent(all_runs)
    if whole.runs == whole.failed:
        raise InputError(f"{directory} has no runs that succeeded: nothing can be reported")
    # Measured: without the checkpoint Spark plans the lineage again for each figure, which takes
    # most of the time.
    runs = prepared(all_runs, _table(spark, directory, "rounds")).localCheckpoint()
    judged = judge(runs)
    parts = [(title, _sections(chapters, runs, whole)) for title, chapters in PARTS]
    headline = lead(runs)
    found = [section for _, sections in parts for section in sections]
    searched = _searched(directory)
    readings = [section.reading for section in found if section.key in _FINDINGS and section.figure]
    return HtmlReport(
        TITLE,
        headline,
        (summary(judged), *readings),
        (
            ("How the runs are judged", method()),
            ("The statements", (*statements(judged), *livelocks(runs))),
            *_shown_parts(parts, found, all_runs, whole),
            *([("Worst cases found", (worst_cases(searched),))] if searched else []),
            ("Threats to validity", threats()),
        ),
        _made(directory, whole),
    )


def _table(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    folder = directory / name
    if not folder.is_dir():
        raise InputError(
            f"{directory} has no table {name!r}: 'skipring lab run' writes it into its output "
            "directory"
        )
    try:
        return spark.read.parquet(str(folder))
    except PySparkException:
        raise InputError(f"{folder} cannot be read: it holds no Parquet files of a lab") from None


def _searched(directory: Path) -> dict[str, str]:
    """Return the worst cases that were beside the matrix: names and texts."""
    path = directory / SEARCHED
    return convert(json.loads(path.read_bytes()), dict[str, str]) if path.is_file() else {}


def _sections(
    chapters: Iterable[tuple[Chapter, frozenset[str]]], runs: DataFrame, whole: Extent
) -> tuple[Section, ...]:
    """Return the sections of a part; kinds without runs cost no query."""
    found: list[Section] = []
    for chapter, kinds in chapters:
        found += chapter(runs if kinds & whole.kinds else runs.filter("false"))
    return tuple(found)


def _shown_parts(
    parts: Sequence[tuple[str, tuple[Section, ...]]],
    found: Sequence[Section],
    runs: DataFrame,
    whole: Extent,
) -> list[tuple[str, tuple[Section, ...]]]:
    """Return the parts with figures, then the sections without runs."""
    shown = [(title, tuple(it for it in sections if it.figure)) for title, sections in parts]
    shown_parts = [(title, sections) for title, sections in shown if sections]
    left_out = tuple(section.reading for section in found if not section.figure)
    rest = []
    if left_out:
        title = "Figures that are left out"
        rest.append(Section("left-out", title, "There are no runs for these.", notes=left_out))
    if whole.failed:
        rest.append(_failures(runs, whole.failed))
    return [*shown_parts, ("What this matrix does not show", tuple(rest))] if rest else shown_parts


def _failures(runs: DataFrame, failed: int) -> Section:
    rows = runs.filter("error IS NOT NULL").orderBy("run_id").limit(_FAILED_SHOWN)
    table = Table(
        ("run", "error"),
        tuple((row["run_id"], row["error"]) for row in rows.select("run_id", "error").collect()),
    )
    who = (
        "1 run raised an error and counts"
        if failed == 1
        else f"{failed:,} runs raised errors and count"
    )
    reading = f"{who} nowhere else on this page."
    return Section("failed", "Runs that failed", reading, table=table)


# --- how it was made -------------------------------------------------------------------


def _made(directory: Path, whole: Extent) -> tuple[tuple[str, str], ...]:
    matrix = directory / MATRIX
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        ("runs", f"{whole.runs:,}, of which {whole.failed:,} failed"),
        ("sizes", f"n from {whole.n_min:,} to {whole.n_max:,}"),
        ("adversaries", f"{whole.adversaries:,}"),
        ("messages simulated", f"{whole.messages:,}"),
        ("environment", _ENVIRONMENT),
        ("versions", versions),
        *([("matrix", matrix.read_text(encoding="utf-8"))] if matrix.is_file() else []),
    )


_PACKAGES: Final = ("skipring", "pyspark", "scipy", "plotly")
_ENVIRONMENT: Final = (
    "CPython 3.11 or newer, packages of requirements.lock, any machine; that of these runs is in "
    f"{FIGURES}/{ENVIRONMENT}, the only file that differs between machines"
)
