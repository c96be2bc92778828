"""``skipring lab`` and ``skipring bench``: exit status, output, resuming, and JSON lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from time import monotonic, sleep

import pytest
from click.testing import CliRunner, Result
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from rich.console import Console

from skipring.cli import skipring
from skipring.errors import InputError, SkipringError
from skipring.lab.experiments import report, runner
from skipring.lab.experiments.matrix import Matrix
from skipring.lab.experiments.runner import RunSummary, TrialProgress
from skipring.spark import session

DEADLINE_S = 240.0
LOOK_S = 0.02
SIM = ("sim", "--n", "4", "--ring-n", "5", "--recovery-n", "3")


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "m.toml"
    path.write_text('title = "t"\n[[experiment]]\nkind = "topology"\nn = 4\nseeds = 3\n')
    return path


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Replace Spark by a fake; return the list of its calls."""
    done: list[object] = []

    @contextmanager
    def opened(**given: object) -> Iterator[None]:
        done.append(given)
        try:
            yield
        finally:
            done.append("stopped")

    monkeypatch.setattr(session, "opened", opened)
    return done


def lab(*words: str | Path) -> Result:
    return CliRunner().invoke(skipring, ["lab", *map(str, words)], standalone_mode=False)


def test_unusable_matrix_is_refused_before_spark_starts(
    tmp_path: Path, matrix: Path, pretend: list[object]
) -> None:
    matrix.write_text('title = "t"\n[[experiment]]\nkind = "topology"\nn = 0\n')
    result = lab("run", matrix, "--out", tmp_path / "out")
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(f"{matrix}: experiment 1: n: expected whole numbers")
    assert pretend == []
    assert not (tmp_path / "out").exists()


def test_directory_of_another_format_is_refused_before_spark_starts(
    tmp_path: Path, matrix: Path, pretend: list[object]
) -> None:
    (tmp_path / "lab.json").write_text('{"format": "skipring-lab/99"}')
    for words in (["run", matrix, "--out", tmp_path], ["report", tmp_path]):
        result = lab(*words)
        assert isinstance(result.exception, InputError)
    assert pretend == []


def test_spark_error_in_a_report_is_one_sentence(
    tmp_path: Path, pretend: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise Py4JError("java.lang.RuntimeException: runs/chunk-000000.parquet is no Parquet")

    (tmp_path / "lab.json").write_text('{"format": "skipring-lab/3"}')
    monkeypatch.setattr(report, "write_report", fail)
    result = lab("report", tmp_path)
    assert isinstance(result.exception, SkipringError)
    assert "chunk-000000.parquet is no Parquet" in str(result.exception)
    assert pretend[-1] == "stopped"


@pytest.mark.parametrize(("failed", "status"), [({}, 0), ({"a run": "ValueError: x"}, 1)])
def test_exit_status_states_whether_a_run_failed(
    tmp_path: Path,
    matrix: Path,
    pretend: list[object],
    monkeypatch: pytest.MonkeyPatch,
    failed: dict[str, str],
    status: int,
) -> None:
    def run_matrix(spark: object, matrix: Matrix, out: Path, **given: object) -> RunSummary:
        assert given["partition_count"] == 5
        return RunSummary(len(matrix.runs), 1, 2, failed)

    monkeypatch.setattr(runner, "run_matrix", run_matrix)
    result = lab(
        *("run", matrix, "--out", tmp_path / "out", "--partitions", "5"),
        *("--master", "local[1]", "--conf", "spark.a=b"),
    )
    assert result.return_value == status
    assert json.loads(result.stdout) == {"done": 2, "failed": failed, "found": 1, "total": 3}
    started, stopped = pretend
    assert isinstance(started, dict)
    assert started["master"] == "local[1]"
    assert started["conf"]["spark.a"] == "b"
    assert stopped == "stopped"


def test_progress_on_a_pipe_is_lines_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), force_terminal=False)
    monkeypatch.setattr(runner, "LINE_S", 0.0)
    with runner.live_progress(console, "t") as report_progress:
        report_progress(TrialProgress(40, 100, 0.25))
    assert console.file.getvalue() == "40 of 100 runs\n"  # type: ignore[attr-defined]


# -- the program -----------------------------------------------------------------------------

# Chunks of a fraction of a second, so that there are many.
PROGRAM = """
from skipring.lab.experiments import runner
runner.CHUNK_S = 0.1
from skipring.cli import main
main()
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < deadline, "the condition did not hold in time"
        sleep(LOOK_S)


@pytest.mark.slow
def test_interrupted_run_prints_how_to_resume_and_resumes(tmp_path: Path) -> None:
    path, out = tmp_path / "m.toml", tmp_path / "out"
    block = 'kind = "converge"\nn = 16\nseeds = 300\nclosure = 0\n'
    path.write_text(f'title = "t"\n[[experiment]]\n{block}')
    words = ["lab", "run", str(path), "--out", str(out), "--master", "local[2]"]
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: any(out.glob("runs/chunk-*")) or program.poll() is not None)
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=DEADLINE_S)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait(DEADLINE_S)
    assert program.returncode == 130
    assert stdout == ""
    assert f"continue with: skipring lab run {path} --out {out}" in stderr
    assert "Traceback" not in stderr
    again = subprocess.run(
        [sys.executable, "-m", "skipring", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    said = json.loads(again.stdout)
    assert said["total"] == 300
    assert said["found"] > 0
    assert said["done"] == 300 - said["found"]


# -- skipring bench ---------------------------------------------------------------------------


def bench(*words: str) -> Result:
    return CliRunner().invoke(skipring, ["bench", *words], prog_name="skipring")


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (SIM, {3, 4, 5}),
        (("index", "--n", "300", "--json"), {300}),
        (("reconcile", "--n", "9,30"), {9, 30}),
    ],
)
def test_each_measurement_is_a_json_line(words: tuple[str, ...], sizes: set[int]) -> None:
    result = bench(*words, "--seed", "3")
    assert (result.exit_code, result.stderr) == (0, "")
    assert {json.loads(line)["n"] for line in result.stdout.splitlines()} == sizes


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
