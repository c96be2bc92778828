"""Report of the lab: a page from the tables of a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.errors import InputError
from skipring.lab.experiments.aggregates import (
    HEALING,
    IN_THE_MODEL,
    Group,
    groups,
    prepared,
    share_bounds,
)
from skipring.lab.experiments.costs import (
    at_rest,
    healing_costs,
    membership,
    overlays,
    publications,
    weather,
)
from skipring.lab.experiments.healing_sections import (
    ablation,
    layers,
    rounds_by_n,
    rule_by_rule,
    survival_curves,
)
from skipring.lab.experiments.results import MATRIX
from skipring.lab.experiments.statements import MODES
from skipring.lab.experiments.verdicts import NOT_MEASURED, Judged, judge
from skipring.report.page import HtmlReport, Section, render
from skipring.report.tables import Cell, Cells, Table, Tone, number, percent
from skipring.storage.data_dir import translate_os_errors

_WHO: Final = {
    Mode.FAST: "With all its rules (mode fast) skipring",
    Mode.FIXED: "With the fixes alone (mode fixed) it",
    Mode.PAPER: "The paper's pseudocode (mode paper)",
}


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
    found = groups(runs.filter(f"{HEALING} AND {IN_THE_MODEL}"), ["mode"], "rounds")
    if not found:
        return "This matrix has no runs of kind converge, so it has no result about healing."
    order = [Mode.FAST, Mode.FIXED, Mode.PAPER]
    found.sort(key=lambda group: order.index(Mode(str(group.at["mode"]))))
    return " ".join(map(_group_sentence, found))


def _group_sentence(group: Group) -> str:
    sample, good = group.sample, len(group.sample.finite)
    who = _WHO[Mode(str(group.at["mode"]))]
    bounds = share_bounds(good, sample.runs)
    if good < sample.runs:
        return (
            f"{who} became legitimate in {good:,} of {sample.runs:,} runs (true share "
            f"{percent(bounds.low)} to {percent(bounds.high)} with 95 %)."
        )
    return (
        f"{who} became legitimate in all {sample.runs:,} runs (true share ≥ "
        f"{percent(bounds.low)} with 95 %), half of them within "
        f"{number(sample.quantile(0.5))} rounds, the slowest in {number(sample.values[-1])}."
    )


def summary(judged: Sequence[Judged]) -> str:
    """Return the numbers of statements that hold, do not hold, and were not measured."""
    return (
        f"Of {len(judged)} statements of the paper, runs with all rules (mode fast) contradict "
        f"{_toned(judged, Mode.FAST, Tone.BAD)} and agree with "
        f"{_toned(judged, Mode.FAST, Tone.GOOD)}; runs of the pseudocode (mode paper) contradict "
        f"{_toned(judged, Mode.PAPER, Tone.BAD)}; "
        f"{sum(not one.is_measured for one in judged)} were not measured."
    )


def _toned(judged: Iterable[Judged], mode: Mode, tone: Tone) -> int:
    return sum(one.verdicts.get(mode, NOT_MEASURED).tone is tone for one in judged)


Chapter: TypeAlias = Callable[[DataFrame], tuple[Section, ...]]

_CONVERGE: Final = frozenset({"converge"})

TITLE: Final = "skipring: the paper and what was measured"
# The parts of the page after the statements: the chapters of each, and the kinds of runs that they
# need.
PARTS: Final[tuple[tuple[str, tuple[tuple[Chapter, frozenset[str]], ...]], ...]] = (
    (
        "Healing",
        ((rounds_by_n, _CONVERGE), (survival_curves, _CONVERGE), (layers, _CONVERGE)),
    ),
    ("The rules", ((ablation, _CONVERGE), (rule_by_rule, _CONVERGE))),
    ("Costs of healing", ((healing_costs, _CONVERGE),)),
    (
        "A legitimate ring",
        (
            (at_rest, frozenset({"steady"})),
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
_VERDICT_NOTE: Final = (
    "A run that has not finished within its limit of rounds counts as a counterexample. Bounds "
    "hold "
    "with 95 %: shares after Clopper and Pearson, means and slopes after Student. Runs can refute "
    "a statement, and only make it likely. Only runs in the paper's model count: no loss, no "
    "churn, no rule switched off but where it says so."
)


def write_report(spark: SparkSession, directory: Path, out: Path) -> None:
    """Write the page about the tables of a lab."""
    page = render(make_page(spark, directory))
    with translate_os_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")


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
    readings = [section.reading for section in found if section.key in _FINDINGS and section.figure]
    return HtmlReport(
        TITLE,
        headline,
        (summary(judged), *readings),
        (
            ("The paper's statements", statements(judged)),
            *_shown_parts(parts, found, all_runs, whole),
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


# --- statements ------------------------------------------------------------------------


def statements(judged: Sequence[Judged]) -> tuple[Section, ...]:
    """Return the tables of the paper's statements and their verdicts."""
    of_modes = [one for one in judged if len(one.statement.modes) > 1]
    of_none = [one for one in judged if len(one.statement.modes) == 1]
    return (
        Section(
            "statements",
            "Theorems, lemmas and claims",
            "Each statement, its known result, and the result of the runs of each mode: paper is "
            "the unchanged pseudocode, fixed has the rules that convergence needs, fast has all "
            "rules.",
            table=Table(
                ("where", "statement", "known", *MODES),
                tuple((*_named(one), *_cells(one)) for one in of_modes),
            ),
            notes=(_VERDICT_NOTE,),
            fold_table=False,
        ),
        Section(
            "statements-overlay",
            "Statements about the graph",
            "Properties of SR(n) itself, without any protocol, compared with Chord and a skip "
            "graph of the same size.",
            table=Table(
                ("where", "statement", "known", "measured"),
                tuple((*_named(one), one.verdicts[Mode.FAST]) for one in of_none),
            ),
            fold_table=False,
        ),
    )


def _named(one: Judged) -> Cells:
    it = one.statement
    records = f" (decision {', '.join(it.decisions)})" if it.decisions else ""
    return it.section, f"{it.title}. {it.claim}", it.known + records


def _cells(one: Judged) -> Cells:
    nothing = Cell("does not apply")
    return tuple(one.verdicts.get(mode, nothing) for mode in MODES)


# --- how it was made -------------------------------------------------------------------


def _made(directory: Path, whole: Extent) -> tuple[tuple[str, str], ...]:
    matrix = directory / MATRIX
    return (
        ("runs", f"{whole.runs:,}, of which {whole.failed:,} failed"),
        ("sizes", f"n from {whole.n_min:,} to {whole.n_max:,}"),
        ("adversaries", f"{whole.adversaries:,}"),
        ("messages simulated", f"{whole.messages:,}"),
        ("commands", "skipring lab run MATRIX --out DIR\nskipring lab report DIR"),
        ("versions", ", ".join(f"{name} {version(name)}" for name in ("skipring", "pyspark"))),
        *([("matrix", matrix.read_text(encoding="utf-8"))] if matrix.is_file() else []),
    )
