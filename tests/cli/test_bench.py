"""``skipring bench``: one JSON line per measurement, the ratios last."""

import json

import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring

SIM = ("sim", "--n", "4", "--ring-n", "5", "--recovery-n", "3")


def bench(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["bench", *words], prog_name="skipring")


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["piped", "json"])
@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (SIM, {3, 4, 5}),
        (("index", "--n", "300"), {300}),
        (("reconcile", "--n", "30"), {30}),
        (("reconcile", "--n", "9,30"), {9, 30}),
    ],
)
def test_each_measurement_is_a_json_line_and_ratios_are_last(
    words: tuple[str, ...], sizes: set[int], options: tuple[str, ...]
) -> None:
    result = bench(*words, "--seed", "3", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    *rows, last = (json.loads(line) for line in result.stdout.splitlines())
    assert {row["n"] for row in rows} == sizes
    assert list(last) == ["ratios"]


def test_simulator_is_measured_by_memory_healing_events_and_recovery() -> None:
    *rows, _ = (json.loads(line) for line in bench(*SIM).stdout.splitlines())
    assert [(row["job"], row["system"], row["n"]) for row in rows[:4]] == [
        ("memory", "skipring", 5),
        ("healing", "skipring", 5),
        ("events", "skipring", 4),
        ("events", "skeleton", 4),
    ]
    assert {(row["job"], row["n"]) for row in rows[4:]} == {("recovery", 3)}


@pytest.mark.parametrize(
    ("job", "option", "values"),
    [
        *(("sim", f"--{name}", "1 0 -1 1000001 many") for name in ("n", "ring-n", "recovery-n")),
        ("index", "--n", "0 -1 100000001 many 1,2"),
        ("reconcile", "--n", "0 -1 100000001 many  5, 5,0"),  # two blanks: an empty value
    ],
)
def test_unusable_size_is_refused(job: str, option: str, values: str) -> None:
    for value in values.split(" "):
        result = bench(job, option, value)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.splitlines()[-1].startswith(f"Error: Invalid value for '{option}': ")


def test_bench_without_job_lists_the_jobs() -> None:
    result = bench()
    assert result.exit_code == 2
    assert all(job in result.output for job in ("index", "reconcile", "sim"))
