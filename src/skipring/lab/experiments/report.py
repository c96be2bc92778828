"""The lab's report: from the tables of a directory to a page, pictures and a Markdown document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from skipring.core.config import Mode
from skipring.errors import InputError
from skipring.lab.experiments.costs import (
    at_rest,
    healing_costs,
    membership,
    overlays,
    publications,
)
from skipring.lab.experiments.document import PICTURE_PREFIX, document
from skipring.lab.experiments.findings import Extent, extent, lead, summary
from skipring.lab.experiments.healing_sections import (
    ablation,
    layers,
    rounds_by_n,
    rule_by_rule,
    survival_curves,
)
from skipring.lab.experiments.results import MATRIX
from skipring.lab.experiments.statements import MODES
from skipring.lab.experiments.statistics import prepared
from skipring.lab.experiments.theorems import Judged, judge
from skipring.lab.experiments.weather import weather
from skipring.report.page import HtmlReport, Section, render
from skipring.report.pictures import find_browser, write_pictures
from skipring.report.tables import Cell, Cells, Table
from skipring.storage.data_dir import translate_os_errors

Chapter: TypeAlias = Callable[[DataFrame], tuple[Section, ...]]

_CONVERGE: Final = frozenset({"converge"})

TITLE: Final = "skipring: the paper and what was measured"
# The parts of the page after the statements, and what is in each: chapters, and of which kinds of
# runs they are.
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
    ("Beside other overlays", ((overlays, frozenset({"topology"})),)),
    ("Bad weather", ((weather, _CONVERGE),)),
)
# Sections whose reading is also a finding of the whole.
_FINDINGS: Final = ("modes-share", "rounds-by-n", "supervisor-steady", "messages-per-delivery")
_FAILED_SHOWN: Final = 50
_VERDICT_NOTE: Final = (
    "A run that is not through after its limit of rounds counts as a counterexample. Bounds hold "
    "with 95 %: shares after Clopper and Pearson, means and slopes after Student. Runs can refute "
    "a statement, and only make it likely. Only runs in the paper's model count: no loss, no "
    "churn, no rule switched off but where it says so."
)


def write_report(
    spark: SparkSession,
    directory: Path,
    out: Path,
    pictures: Path | None,
    markdown: Path | None = None,
) -> None:
    """Write the page, and if asked for the pictures and a Markdown document that shows them."""
    if pictures is not None:
        find_browser()  # before minutes of work
    page = make_page(spark, directory)
    _write(out, render(page))
    if pictures is not None:
        with translate_os_errors(pictures):
            write_pictures(
                ((PICTURE_PREFIX + section.key, section.figure) for section in _shown(page)),
                pictures,
            )
    if markdown is not None:
        _write(markdown, document(page, pictures, markdown.parent))


def _write(file: Path, text: str) -> None:
    with translate_os_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def make_page(spark: SparkSession, directory: Path) -> HtmlReport:
    """What the tables of a lab say, as a page."""
    all_runs = _table(spark, directory, "runs")
    whole = extent(all_runs)
    if whole.runs == whole.failed:
        raise InputError(f"{directory} has no runs that succeeded: nothing can be reported")
    # Cut off from how it came to be: planning that anew for every figure took most of the time.
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
        (("The paper's statements", statements(judged)), *_told(parts, found, all_runs, whole)),
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
    """The sections of a part; Spark sees that nothing is asked of kinds that there are not."""
    found: list[Section] = []
    for chapter, kinds in chapters:
        found += chapter(runs if kinds & whole.kinds else runs.filter("false"))
    return tuple(found)


def _shown(page: HtmlReport) -> list[Section]:
    return [it for _, sections in page.parts for it in sections if it.figure is not None]


def _told(
    parts: Sequence[tuple[str, tuple[Section, ...]]],
    found: Sequence[Section],
    runs: DataFrame,
    whole: Extent,
) -> list[tuple[str, tuple[Section, ...]]]:
    """The parts that show something, then what the matrix leaves out."""
    shown = [(title, tuple(it for it in sections if it.figure)) for title, sections in parts]
    told = [(title, sections) for title, sections in shown if sections]
    left_out = tuple(section.reading for section in found if not section.figure)
    rest = []
    if left_out:
        title = "Figures that are left out"
        rest.append(Section("left-out", title, "There are no runs for these.", notes=left_out))
    if whole.failed:
        rest.append(_failures(runs, whole.failed))
    return [*told, ("What this matrix does not show", tuple(rest))] if rest else told


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
    """The tables of the paper's statements beside their verdicts."""
    of_modes = [one for one in judged if len(one.statement.modes) > 1]
    of_none = [one for one in judged if len(one.statement.modes) == 1]
    return (
        Section(
            "statements",
            "Theorems, lemmas and claims",
            "Each statement, what is known of it whatever the runs say, and what the runs of each "
            "mode say: paper is the pseudocode as it stands, fixed what it takes to converge, fast "
            "all rules.",
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
            "What is true of SR(n) itself, without any protocol, beside Chord and a skip graph of "
            "the same size.",
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
