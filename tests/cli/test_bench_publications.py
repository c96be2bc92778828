"""``skipring bench index`` and ``skipring bench reconcile``."""

import json

import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring


def bench(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["bench", *words], prog_name="skipring")


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["piped", "json"])
@pytest.mark.parametrize(
    ("job", "n"), [("index", "300"), ("reconcile", "30"), ("reconcile", "9,30")]
)
def test_each_measurement_is_a_json_line_and_ratios_are_last(
    job: str, n: str, options: tuple[str, ...]
) -> None:
    result = bench(job, "--n", n, "--seed", "3", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    *rows, last = (json.loads(line) for line in result.stdout.splitlines())
    assert {str(row["n"]) for row in rows} == set(n.split(","))
    assert list(last) == ["ratios"]


@pytest.mark.parametrize(
    ("job", "value"),
    [
        *(("index", value) for value in ("0", "-1", "100000001", "many", "1,2")),
        *(("reconcile", value) for value in ("0", "-1", "100000001", "many", "", "5,", "5,0")),
    ],
)
def test_unusable_size_is_refused(job: str, value: str) -> None:
    result = bench(job, "--n", value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("Error: Invalid value for '--n': ")


def test_bench_without_job_lists_the_jobs() -> None:
    result = bench()
    assert result.exit_code == 2
    assert all(job in result.output for job in ("index", "reconcile", "sim"))
