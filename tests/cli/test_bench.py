"""``skipring bench``: one JSON line per measurement, the ratios last."""

import json

import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring


def bench(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["bench", *words], prog_name="skipring")


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["piped", "json"])
def test_each_measurement_is_a_json_line_and_ratios_are_last(
    options: tuple[str, ...],
) -> None:
    result = bench("sim", "--n", "4", "--ring-n", "5", "--recovery-n", "3", "--seed", "3", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    *rows, last = (json.loads(line) for line in result.stdout.splitlines())
    assert [(row["job"], row["system"], row["n"]) for row in rows[:4]] == [
        ("memory", "skipring", 5),
        ("healing", "skipring", 5),
        ("events", "skipring", 4),
        ("events", "skeleton", 4),
    ]
    assert {(row["job"], row["n"]) for row in rows[4:]} == {("recovery", 3)}
    assert list(last) == ["ratios"]


@pytest.mark.parametrize("option", ["--n", "--ring-n", "--recovery-n"])
@pytest.mark.parametrize("value", ["1", "0", "-1", "1000001", "many"])
def test_unusable_size_is_refused(option: str, value: str) -> None:
    result = bench("sim", option, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"Error: Invalid value for '{option}': ")


def test_bench_without_job_lists_the_jobs() -> None:
    result = bench()
    assert result.exit_code == 2
    assert "sim" in result.output
