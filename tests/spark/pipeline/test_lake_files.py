"""Files of a lake: replaced atomically, and errors that name what is missing."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.errors import InputError, StorageError
from skipring.spark.pipeline.lake_files import LakeFiles

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("scheme", ["file", "hdfs", "s3a"])
def test_file_is_replaced_in_the_way_of_each_file_system(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    files = LakeFiles(spark, str(tmp_path))
    files.scheme = scheme  # the local file system has all three ways
    for content in (b"old", b"new"):
        files.write("a.json", content)
        assert files.read("a.json") == content
    assert [entry.name for entry in files.list("")] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"new"


def test_missing_file_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    files = LakeFiles(spark, str(tmp_path))
    assert files.read("none") is None
    assert files.list("none") == []
    files.remove("none")
    assert not files.exists("none")


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("s3a://bucket/x", "spark.jars.packages=org.apache.hadoop:hadoop-aws:3"),
        ("gs://bucket/x", "com.google.cloud.bigdataoss:gcs-connector"),
        ("unknown://bucket/x", "Spark has no driver for unknown://"),
        ("unknown:/x", "Spark has no driver for unknown://"),
    ],
)
def test_missing_driver_is_an_error_with_its_package(
    spark: SparkSession, root: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        LakeFiles(spark, root)


def test_address_of_a_local_lake_is_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    LakeFiles(spark, f"file:{tmp_path}").write("a", b"b")
    assert (tmp_path / "a").read_bytes() == b"b"


def test_unusable_directory_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="not a directory"):
        LakeFiles(spark, str(tmp_path / "file" / "lake")).make_directory()


def test_lock_of_another_process_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    files = LakeFiles(spark, str(tmp_path))
    with files.locked(".lock") as is_locked:
        assert is_locked
    with (tmp_path / ".lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # as the JVM of another run does
        with files.locked(".lock") as is_locked:
            assert not is_locked
    files.scheme = "s3a"
    with files.locked(".lock") as is_locked:
        assert is_locked
