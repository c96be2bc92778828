"""The wheel: all of the package is in it, and it works where only what it asks for is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
PACKAGES = ("skipring", "pyspark_skipring")


def run(
    *command: str | Path, cwd: Path, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as on another machine: nothing of this one's settings is handed down."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=kept | {"PATH": os.defpath} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=check,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree without asking any package index."""
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=ROOT)
    (built,) = target.glob("*.whl")
    return built


# --- what is in it ---------------------------------------------------------------------


@pytest.mark.heavy
def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for package in PACKAGES
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"skipring/py.typed", "skipring/web/static/index.html"} <= ours
    assert ours - set(ZipFile(wheel).namelist()) == set()


@pytest.mark.heavy
def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in ZipFile(wheel).namelist() if re.search(r"\.pyc$|/tests?/", name)]


# --- an environment with nothing but it and what it asks for ---------------------------


def needed(name: str, known: dict[str, Distribution]) -> dict[str, Distribution]:
    """What a distribution asks for, directly or not, without extras, as it is installed here."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        other = canonicalize_name(requirement.name)
        is_asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_asked and other not in known:
            known[other] = distribution(other)
            needed(other, known)
    return known


def roots(found: Distribution) -> Iterator[Path]:
    """The files and folders directly in site-packages that a distribution consists of."""
    place = Path(str(found.locate_file("")))
    names = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
    yield from (place / name for name in sorted(names) if name != "__pycache__")


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of the wheel in an environment of its own.

    An index is not asked: what the wheel declares that it needs is linked from the environment of
    this test, which has it from the lock; what it does not declare is not there.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    (library,) = place.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install"]
    run(*pip, "--quiet", "--no-deps", "--no-index", wheel, cwd=place)
    for found in needed("skipring", {}).values():
        for root in roots(found):
            (library / root.name).symlink_to(root)
    return place / "bin" / "skipring"


@pytest.mark.heavy
def test_the_environment_has_the_wheel_and_not_the_working_tree(
    program: Path, tmp_path: Path
) -> None:
    say = "import skipring, sys; print(skipring.__file__); import pyspark"
    done = run(program.parent / "python", "-c", say, cwd=tmp_path, check=False)
    assert Path(done.stdout.strip()).is_relative_to(program.parents[1])
    assert "No module named 'pyspark'" in done.stderr


@pytest.mark.heavy
def test_the_command_of_the_wheel_runs(program: Path, tmp_path: Path) -> None:
    version = run(program, "--version", cwd=tmp_path).stdout
    assert version.split()[-1] == distribution("skipring").version
    report = json.loads(
        run(program, "simulate", "--adversary", "A15", "--json", cwd=tmp_path).stdout
    )
    assert report["converged"]
    assert "Usage: skipring top" in run(program, "top", "--help", cwd=tmp_path).stdout


@pytest.mark.heavy
def test_every_module_that_needs_no_spark_can_be_imported(program: Path, tmp_path: Path) -> None:
    code = """
import pkgutil, importlib, skipring
found = [each.name for each in pkgutil.walk_packages(skipring.__path__, "skipring.")]
others = ("skipring.spark.", "skipring.bench.", "skipring.demo.analyst", "skipring.__main__")
for name in found:
    if not name.startswith(others):
        importlib.import_module(name)
print(len(found))
"""
    done = run(program.parent / "python", "-c", code, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 200


@pytest.mark.heavy
def test_the_demo_runs_from_the_wheel(program: Path, tmp_path: Path) -> None:
    done = run(program, "demo", "--headless", "--assert", "--n", "8", cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal root hashes" in done.stdout
    assert "skipring[spark]" in done.stdout  # it is not there, and the demo says how to get it
    assert list(tmp_path.iterdir()) == []
