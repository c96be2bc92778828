"""Table of the targets: rows, Markdown, and one job of each kind."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.errors import SkipringError
from skipring.lab.bench import targets
from skipring.lab.bench.report import Figures
from skipring.lab.bench.systems.catalog import OURS
from skipring.lab.bench.targets import (
    HISTORY,
    INDEX,
    JOBS,
    SMALL,
    START,
    TARGETS,
    Bound,
    Figure,
    Key,
    Results,
    Sizes,
    Target,
    actions_of,
    markdown,
    rows,
    target_row,
)


def _results(**changed: list[Figures] | SkipringError) -> Results:
    """Return results in which each figure of the table is 2, 4 and 3 in three repeats."""
    names: dict[Key, set[str]] = {}
    for figure in (figure for target in TARGETS for figure in target.figures):
        names.setdefault((figure.job, figure.system), set()).add(figure.name)
    found: dict[Key, list[Figures] | SkipringError] = {
        key: [dict.fromkeys(each, value) for value in (2.0, 4.0, 3.0)]
        for key, each in names.items()
    }
    return found | {(job, OURS): figures for job, figures in changed.items()}


def test_every_target_has_the_figures_of_a_job() -> None:
    actions = actions_of(Sizes(), JOBS)
    figures = [figure for target in TARGETS for figure in target.figures]
    assert {(figure.job, figure.system) for figure in figures} == set(actions)
    assert len({target.key for target in TARGETS}) == len(TARGETS)


def test_ratio_is_computed_in_each_round() -> None:
    target = Target("over", "a / b", (Figure("a", "cpu"), Figure("b", "cpu", "nats")))
    results: Results = {
        ("a", OURS): [{"cpu": 2.0}, {"cpu": 30.0}, {"cpu": 4.0}],
        ("b", "nats"): [{"cpu": 1.0}, {"cpu": 10.0}, {"cpu": 4.0}],
    }
    assert target_row(target, results) == {
        "target": "over",
        "text": "a / b",
        "repeats": 3,
        "value": 2.0,
        "value_min": 1.0,
        "value_max": 3.0,
    }


def test_row_shows_its_target_and_by_how_much_it_is_reached() -> None:
    found = {row["target"]: row for row in rows(_results()) if "target" in row}
    assert found["start_single_cpu_s"]["target_value"] == 3
    assert found["start_single_cpu_s"]["reached"] == 1
    assert found["cpu_nats_over_skipring_n64"]["reached"] == pytest.approx(1 / 3.5, abs=0.01)
    assert found["p50_ms_lone"]["value"] == 3
    assert "reached" not in found["p50_ms_lone"]
    assert found["cpu_nats_over_skipring_n64"]["aim"] == 5
    assert found["cpu_nats_over_skipring_n64"]["aim_reached"] == pytest.approx(1 / 5, abs=0.01)
    assert "aim" not in found["start_single_cpu_s"]


@pytest.mark.parametrize(
    ("bound", "found", "reached"),
    [
        (Bound(2.5), 5.0, 2.0),
        (Bound(2.5), 2.5, 1.0),
        (Bound(2.5), 1.0, 0.4),
        (Bound(1000), 999, 0.999),
        (Bound(30, is_upper=True), 15, 2.0),
        (Bound(30, is_upper=True), 60, 0.5),
        (Bound(30, is_upper=True), 0, 1.0),
        (Bound(1000, is_upper=True), 1001, 0.999),
    ],
)
def test_bound_is_reached_from_1_on(bound: Bound, found: float, reached: float) -> None:
    assert bound.reached(found, bound.goal) == reached


def test_failed_job_has_a_reason_and_no_value() -> None:
    results = _results(start=SkipringError("no room"))
    failed = [row for row in rows(results) if row.get("failed") == "no room"]
    assert [row.get("target") for row in failed] == [None, "start_cpu_s", "start_pause_ms"]
    assert len([line for line in markdown(results) if "not measured: no room" in line]) == 2


def cells(lines: list[str], text: str, after: int = 0) -> list[str]:
    """Return the cells of the line that starts with a text, or of a line after it."""
    place = next(number for number, line in enumerate(lines) if line.startswith(f"| {text}"))
    return [cell.strip() for cell in lines[place + after].split("|")[1:-1]]


def test_table_shows_target_and_aim_with_their_verdicts() -> None:
    results = _results(start=[{"cpu_s": 0.15, "pause_ms": 100.0}])
    header, line, *body = markdown(results)
    assert {text.count("|") for text in (header, line, *body)} == {8}
    _, cpu, *reached = cells(body, "start with 10⁶ records in batches of 250")
    assert (cpu, *reached) == ("0.15 (0.15 to 0.15)", "1", "at most 0.3", "reached (2.0)", "", "")
    missed = cells(body, "start with 10⁶ records in batches of 250", after=1)
    assert missed[3:5] == ["at most 50", "**missed** (0.5)"]
    lone = cells(body, "lone publication, CPU per member")
    assert lone[3:] == ["at most 35", "reached (11.67)", "at most 20", "reached (6.67)"]


@pytest.mark.heavy
def test_small_jobs_of_each_kind_are_measured() -> None:
    ended: list[Key] = []
    jobs = [targets.THROUGHPUT, HISTORY, START, INDEX]
    own = {key: action for key, action in actions_of(SMALL, jobs).items() if key[1] == OURS}
    assert list(own) == [(job, OURS) for job in jobs]
    found = targets.in_turns(own, 1, lambda key, _: ended.append(key))
    assert ended == list(own)
    measured = {row["target"]: row for row in rows(found) if "target" in row}
    assert list(measured) == [
        "start_cpu_s",
        "start_pause_ms",
        "inserts_per_s",
        "rss_kib_per_member",
    ]
    assert all(row["repeats"] == 1 for row in measured.values())
    assert measured["start_cpu_s"]["value"] > 0


@pytest.mark.parametrize("is_json", [True, False])
def test_command_prints_the_table_or_json(is_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Sizes, int, list[str]]] = []

    def measured(
        sizes: Sizes, *, repeats: int, jobs: list[str], observe: Callable[[Key, float], None]
    ) -> Results:
        asked.append((sizes, repeats, jobs))
        observe((START, OURS), 3.2)
        return _results()

    monkeypatch.setattr(targets, "measure", measured)
    words = ["bench", "targets", "--small", "--repeats", "2", "--job", "start,idle"]
    got = CliRunner().invoke(skipring, [*words, "--json"] if is_json else words)
    assert got.exit_code == 0, got.output
    assert asked == [(SMALL, 2, ["start", "idle"])]
    assert got.stderr == "start skipring: 3 s\n"
    lines = got.stdout.splitlines()
    if is_json:
        assert [json.loads(line) for line in lines] == list(rows(_results()))
    else:
        assert lines == list(markdown(_results()))


def test_unknown_job_is_refused() -> None:
    got = CliRunner().invoke(skipring, ["bench", "targets", "--job", "nothing"])
    assert got.exit_code == 2
    assert "'nothing' is not one of" in got.output
