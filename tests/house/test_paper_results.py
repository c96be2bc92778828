"""Claims of the README, the paper map and the decision records agree with the page of the lab."""

from __future__ import annotations

import json
import re

import pytest

from skipring.lab.experiments.matrix import read_matrix
from skipring.lab.experiments.report import OPENING
from skipring.lab.experiments.sections.evaluation import method, threats
from skipring.lab.experiments.statements import STATEMENTS
from skipring.report.markdown import document
from skipring.report.page import HtmlReport
from skipring.sim.engine import IN_FLIGHT_PER_NODE_MAX
from skipring.world.adversaries import ADVERSARIES
from tests.support.source_tree import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "paper-results.md").read_text(encoding="utf-8")
PAPER_MAP = (DOCS / "paper-map.md").read_text(encoding="utf-8")


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a heading."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(lines) > 2, heading
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines[2:]]


def cell(heading: str, row: list[str], column: str) -> str:
    """Return the cell of a column of the table below a heading."""
    lines = PAGE.partition(f"### {heading}\n")[2].splitlines()
    names = next(line for line in lines if line.startswith("| ")).strip("| ").split(" | ")
    return row[names.index(column)]


def start_of(title: str) -> str:
    return re.split(r"[,;]|: logarithmic", title)[0]


PSEUDOCODE = "Statements about the pseudocode"
# Of the pseudocode: title and verdict.
VERDICTS = {
    it.title: cell(PSEUDOCODE, row, "verdict").split()[-1]
    for row in rows_of(PSEUDOCODE)
    for it in STATEMENTS
    if row[1].startswith(f"{it.title}. ") and not it.is_ours
}
# Of the map: title, and whether its last column calls the statement false.
CLAIMS = [
    (title, known.startswith("**False**"))
    for title, known in re.findall(
        r"^\| ((?:Theorem|Lemma|Corollary|Claim)[^|]*?) \|.*\| ([^|]*)\|$", PAPER_MAP, re.MULTILINE
    )
]
CAUSES = rows_of("Contradictions by cause")


@pytest.mark.parametrize(("title", "is_false"), CLAIMS, ids=[title for title, _ in CLAIMS])
def test_statement_is_refuted_on_the_page_exactly_if_the_map_calls_it_false(
    title: str, is_false: bool
) -> None:
    found = [word for name, word in VERDICTS.items() if name.startswith(start_of(title))]
    assert ("refuted" in found) == is_false, found


def test_every_statement_of_the_paper_has_a_verdict_or_names_its_tests() -> None:
    words = {cell(PSEUDOCODE, row, "verdict").split(" ", 1)[-1] for row in rows_of(PSEUDOCODE)}
    assert words <= {"supported", "refuted", "undecided", "too few runs", "tests"}


@pytest.mark.parametrize("row", CAUSES, ids=[row[0][:40] for row in CAUSES])
def test_decision_about_a_cause_leads_to_the_page(row: list[str]) -> None:
    (record,) = (DOCS / "decisions").glob(f"{row[1][:4]}-*.md")
    assert "paper-results.md#contradictions-by-cause" in record.read_text(encoding="utf-8")


def test_every_record_that_leads_to_the_causes_is_one_of_them() -> None:
    linked = {
        path.name[:4]
        for path in (DOCS / "decisions").glob("0*.md")
        if "#contradictions-by-cause" in path.read_text(encoding="utf-8")
    }
    assert linked == {row[1][:4] for row in CAUSES}


def test_number_of_contradictions_is_that_of_the_table() -> None:
    (refuted, causes) = re.findall(r"\(mode paper\) contradict (\d+) \((\d+) causes?\)", PAGE)[0]
    assert int(refuted) == list(VERDICTS.values()).count("refuted")
    assert int(causes) == sum("paper" in row[2] for row in CAUSES)


def test_requests_agree_with_the_decision_about_their_number() -> None:
    """Decision 0012: towards 1.32 in the paper, below 0.912 as built."""
    text = "fewer than one request expected in an interval"
    (paper,) = (row for row in rows_of("Statements about the pseudocode") if text in row[1])
    built = [
        row
        for row in rows_of("The same statements with the rules of this project")
        if text in row[1]
    ]
    largest = [
        float(re.findall(r"largest mean is ([\d.]+)", row[-1])[0]) for row in (paper, *built)
    ]
    assert 1.0 < largest[0] < 1.32
    assert len(built) == 2
    assert all(mean < 0.95 for mean in largest[1:])


def means(heading: str, mode: str, column: str) -> dict[int, float]:
    """Return the values of a column by n, of the rows of a mode."""
    rows = [row for row in rows_of(heading) if cell(heading, row, "mode") == mode]
    return {int(row[1]): float(cell(heading, row, column)) for row in rows}


def record(number: str) -> str:
    (path,) = (DOCS / "decisions").glob(f"{number}-*.md")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("row", "mode"), [("as built", "fast"), ("`--without k+1`", "paper")])
def test_requests_by_n_agree_with_the_table_of_decision_0012(row: str, mode: str) -> None:
    lines = [line.strip("| ").split(" | ") for line in record("0012").splitlines()]
    (sizes,) = (line[1:] for line in lines if line[0] == "n")
    (values,) = (line[1:] for line in lines if line[0] == row)
    recorded = dict(zip(map(int, sizes), map(float, values), strict=True))
    shown = means("Supervisor load in a legitimate state", mode, "mean (requests a round)")
    common = shown.keys() & recorded.keys()
    assert len(common) >= 3
    assert all(abs(shown[n] - recorded[n]) < 0.06 for n in common)


def test_livelocks_within_the_hypotheses_agree_with_decision_0003() -> None:
    """From some starts the ring never forms in lockstep, and rule R1 removes the cause."""
    assert "the ring never forms in a computation in lockstep" in record("0003").replace("\n", " ")
    (found,) = re.findall(
        r"Of the (\d+) livelocks within the hypotheses.*?heals in (\d+) with rule R1 alone", PAGE
    )
    assert int(found[0]) > 0
    assert int(found[1]) > 0


def test_periods_of_the_coins_agree_with_decision_0063() -> None:
    """144 rounds at n = 8, 57,600 at n = 32."""
    periods = re.findall(r"([\d,]+) (?:rounds )?at n = (8|32)", record("0063"))
    assert len(periods) == 2
    for period, n in periods:
        assert re.search(rf"\b{period} (rounds )?at n = {n}\b", PAGE)


def test_message_limit_agrees_with_decision_0061_and_the_page_of_the_lab() -> None:
    limit = f"{IN_FLIGHT_PER_NODE_MAX} messages"
    assert limit in record("0061")
    assert limit in (DOCS / "lab.md").read_text(encoding="utf-8")


# -- what holds once the page has been made again: `make slow` -------------------------------


@pytest.mark.slow
def test_requests_of_mode_deterministic_agree_with_decision_0062() -> None:
    recorded = re.findall(r"requests per interval, n = (\d+) \| ([\d.]+)", record("0062"))
    shown = means(
        "Supervisor load in a legitimate state", "deterministic", "mean (requests a round)"
    )
    common = [(int(n), float(mean)) for n, mean in recorded if int(n) in shown]
    assert common
    assert all(abs(shown[n] - mean) < 0.06 for n, mean in common)


@pytest.mark.slow
def test_page_has_the_runs_of_the_small_matrix_from_all_adversaries() -> None:
    matrix = read_matrix(ROOT / "scenarios" / "lab-small.toml")
    assert f"- runs: {len(matrix.runs):,}, of which 0 failed" in PAGE
    assert f"- adversaries: {len(ADVERSARIES)}\n" in PAGE


@pytest.mark.slow
def test_texts_of_the_page_are_those_of_the_generator() -> None:
    assert PAGE.startswith(OPENING)
    for part in (("How the runs are judged", method()), ("Threats to validity", threats())):
        text = document(HtmlReport("", "", (), (part,), ()), "")
        assert text.partition("\n## ")[2].partition("\n## ")[2].partition("\n## ")[0] in PAGE


def test_readme_claims_that_every_start_heals_and_the_page_shows_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "healing from any initial state" in readme
    assert re.search(r"Mode fast, all rules: all [\d,]+ became legitimate", PAGE)


def test_page_names_its_commands_and_versions_of_the_lock() -> None:
    assert "$ skipring lab run scenarios/lab-small.toml --out DIR" in PAGE
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    versions = dict(re.findall(r"(\w+) ([\d.]+)(?:,|$)", PAGE.partition("- versions: ")[2]))
    for name in ("pyspark", "scipy", "plotly"):
        assert f"{name}=={versions[name]} " in lock


def test_every_figure_of_the_page_exists_and_no_other() -> None:
    named = re.findall(r"\]\(figures/(lab-[a-z-]+\.json)\)", PAGE)
    assert sorted(named) == sorted(path.name for path in (DOCS / "figures").glob("lab-*.json"))
    for name in named:
        assert json.loads((DOCS / "figures" / name).read_text(encoding="utf-8"))["data"]
