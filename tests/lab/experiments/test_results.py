"""Directory of the lab: its contents, also after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skipring.errors import InputError, StoreBusyError, StoreFullError
from skipring.lab.experiments import results as results_module
from skipring.lab.experiments.matrix import Matrix, Trial
from skipring.lab.experiments.results import (
    ROUNDS,
    RUNS,
    Results,
    environment,
    opened,
    require_format,
)
from skipring.lab.experiments.trials import perform

MATRIX = Matrix("a title", 'title = "a title"\n', ())


def tables(*seeds: int) -> tuple[pa.Table, pa.Table]:
    runs = [
        Trial(kind="converge", n=4, adversary="A00", max_rounds=50, seed=seed) for seed in seeds
    ]
    outcomes = [perform(run) for run in runs]
    samples = [
        {"run_id": outcome.row["run_id"], **sample}
        for outcome in outcomes
        for sample in outcome.samples
    ]
    return (
        pa.Table.from_pylist([outcome.row for outcome in outcomes], schema=RUNS),
        pa.Table.from_pylist(samples, schema=ROUNDS),
    )


def seeds_of(names: Sequence[str] | set[str]) -> list[int]:
    return sorted(int(name.partition("seed=")[2].split()[0]) for name in names)


def test_chunks_are_added_and_can_be_read_back(tmp_path: Path) -> None:
    with opened(tmp_path / "deep" / "out", MATRIX) as results:
        results.add(*tables(1, 2))
        results.add(*tables(3))
        assert seeds_of(results.finished()) == [1, 2, 3]
        assert results.failed() == {}
    out = tmp_path / "deep" / "out"
    assert (out / "matrix.toml").read_text() == MATRIX.text
    assert json.loads((out / "lab.json").read_text()) == {
        "format": "skipring-lab/3",
        "title": "a title",
    }
    assert json.loads((out / "environment.json").read_text()) == environment()
    for table, schema in (("runs", RUNS), ("rounds", ROUNDS)):
        files = sorted((out / table).iterdir())
        assert [file.name for file in files] == ["chunk-000000.parquet", "chunk-000001.parquet"]
        assert pq.read_schema(files[0]).names == schema.names


class Killed(BaseException):
    """Kill of the process."""


@pytest.mark.parametrize("steps", [0, 1])
def test_kill_during_a_chunk_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Kill between the two files of a chunk, or while one is written."""
    write, left = results_module.write_table, steps

    def write_some(path: Path, table: pa.Table) -> None:
        nonlocal left
        if left == 0:
            path.with_name("." + path.name).write_bytes(b"half a file")
            raise Killed
        left -= 1
        write(path, table)

    with opened(tmp_path, MATRIX) as results:
        results.add(*tables(1))
        monkeypatch.setattr(results_module, "write_table", write_some)
        with pytest.raises(Killed):
            results.add(*tables(2))
    monkeypatch.setattr(results_module, "write_table", write)
    with opened(tmp_path, MATRIX) as results:
        assert seeds_of(results.finished()) == [1]
        for table in ("runs", "rounds"):
            assert [file.name for file in (tmp_path / table).iterdir()] == ["chunk-000000.parquet"]
        results.add(*tables(2))
        assert seeds_of(results.finished()) == [1, 2]
    assert sorted(file.name for file in (tmp_path / "rounds").iterdir()) == sorted(
        file.name for file in (tmp_path / "runs").iterdir()
    )


def test_another_version_of_the_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text('{"format": "skipring-lab/99"}')
    with pytest.raises(
        InputError, match=r"'skipring-lab/99', this version writes .* choose another"
    ):
        opened(tmp_path, MATRIX).__enter__()
    with pytest.raises(InputError, match="skipring-lab/99"):
        require_format(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3"])
def test_invalid_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text)
    with pytest.raises(InputError, match="cannot be read; choose another"):
        require_format(tmp_path)


def test_foreign_directory_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"there is thesis.tex, but no lab.json"):
        opened(tmp_path, MATRIX).__enter__()
    assert not (tmp_path / "runs").exists()


def test_two_processes_cannot_fill_one_directory(tmp_path: Path) -> None:
    with (
        opened(tmp_path, MATRIX),
        pytest.raises(StoreBusyError, match="already open in this process"),
    ):
        opened(tmp_path, MATRIX).__enter__()
    with opened(tmp_path, MATRIX):
        pass


@pytest.mark.parametrize("content", [b"", b"no Parquet", None])
def test_unreadable_chunk_is_named_with_its_remedy(tmp_path: Path, content: bytes | None) -> None:
    with opened(tmp_path, MATRIX) as results:
        path = results.runs / "chunk-000000.parquet"
        if content is None:
            pq.write_table(pa.table({"others": [1]}), path)
        else:
            path.write_bytes(content)
        for read in (results.finished, results.failed):
            with pytest.raises(
                InputError, match=r"remove it and its namesake below rounds"
            ) as caught:
                read()
            assert str(caught.value).startswith(f"{path} cannot be read")


@pytest.mark.parametrize("name", ["chunk-x.parquet", "chunk-.parquet", "chunk-²3.parquet"])
def test_chunk_without_a_number_is_named_with_its_remedy(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, MATRIX) as results:
        path = results.runs / name
        path.write_bytes(b"")
    with pytest.raises(InputError, match="remove it and its namesake below") as caught:
        opened(tmp_path, MATRIX).__enter__()
    assert str(caught.value).startswith(f"{path} cannot be read")


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, table: pa.Table) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results_module, "write_table", refuse)
    with (
        opened(tmp_path, MATRIX) as results,
        pytest.raises(StoreFullError, match="the disk is full"),
    ):
        results.add(*tables(1))


def test_numbers_continue_after_the_last_chunk(tmp_path: Path) -> None:
    with opened(tmp_path, MATRIX) as results:
        results.add(*tables(1))
        results.add(*tables(2))
    for table in ("runs", "rounds"):
        (tmp_path / table / "chunk-000000.parquet").unlink()
    Results(tmp_path).add(*tables(3))
    assert (tmp_path / "runs" / "chunk-000002.parquet").exists()
