"""Wheel and source distribution: contents, metadata, use with the declared requirements only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers as known_classifiers

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
PACKAGES = ("skipring", "pyspark_skipring")


def run(
    *command: str | Path, cwd: Path, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as on another machine, without the settings of this one."""
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
    """Return the wheel, built from the working tree without a package index."""
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target, cwd=ROOT)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution, built from the working tree without a package index."""
    target = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", target, cwd=ROOT)
    (built,) = target.glob("*.tar.gz")
    return built


def source_files() -> set[str]:
    """Return the files of both packages as paths below src/."""
    return {
        path.relative_to(ROOT / "src").as_posix()
        for package in PACKAGES
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


# --- what is in it ---------------------------------------------------------------------


@pytest.mark.heavy
def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    ours = source_files()
    assert {"skipring/py.typed", "skipring/web/static/index.html"} <= ours
    assert ours - set(ZipFile(wheel).namelist()) == set()


@pytest.mark.heavy
def test_wheel_contains_only_the_packages_and_metadata(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in ZipFile(wheel).namelist() if re.search(r"\.pyc$|/tests?/", name)]


@pytest.mark.heavy
def test_sdist_contains_the_sources_and_no_other_directory(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in names if not name.startswith("src/")} == {
        *(".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml")
    }
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == (
        source_files()
    )


@pytest.mark.heavy
def test_wheel_built_from_the_sdist_equals_the_wheel_of_the_tree(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=tree)
    (rebuilt,) = tmp_path.glob("*.whl")
    assert contents(rebuilt) == contents(wheel)


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksum of every file in a wheel."""
    return {each.filename: each.CRC for each in ZipFile(wheel).infolist()}


# --- metadata --------------------------------------------------------------------------


@pytest.mark.heavy
def test_twine_accepts_wheel_and_sdist(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    check = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", wheel, sdist]
    done = run(*check, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.mark.heavy
def test_metadata_has_readme_license_and_links(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Author"] == "The skipring authors"
    links = {each.partition(",")[0] for each in metadata.get_all("Project-URL", [])}
    assert links == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}


@pytest.mark.heavy
def test_wheel_requires_seven_distributions_and_declares_four_extras(wheel: Path) -> None:
    plain = {each.name for each in requirements(wheel) if is_required(each, frozenset())}
    assert plain == {
        *("click", "cryptography", "msgspec", "prometheus-client", "rich", "structlog", "uvloop")
    }
    extras = set(metadata_of(wheel).get_all("Provides-Extra", []))
    assert extras == {"all", "bench", "dashboard", "spark"}


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def test_classifiers_exist_and_none_names_a_license() -> None:
    ours = set(project()["classifiers"])
    assert ours - known_classifiers == set()
    assert not [each for each in ours if each.startswith("License ::")]  # PEP 639


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:3]]


def test_changelog_has_an_entry_for_the_version_of_the_project() -> None:
    """Stores name the version that wrote them, so an unreleased one is above the last release."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", text, re.MULTILINE)
    version, dev, _ = project()["version"].partition(".dev")
    assert headings[0] == "Unreleased"
    assert numbers(headings[1]) < numbers(version) if dev else headings[1] == version


# --- an environment with nothing but it and what it asks for ---------------------------


def needed(required: Iterable[Requirement]) -> dict[str, Distribution]:
    """Return the installed distributions of requirements, transitive, without their extras."""
    known: dict[str, Distribution] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    waiting = [(requirement, frozenset[str]()) for requirement in required]
    while waiting:
        requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        entry = (name, frozenset(requirement.extras))
        if is_required(requirement, extras) and entry not in visited:
            visited.add(entry)
            known[name] = distribution(name)
            waiting += [(Requirement(each), entry[1]) for each in known[name].requires or ()]
    return known


def metadata_of(wheel: Path) -> Message:
    (name,) = (each for each in ZipFile(wheel).namelist() if each.endswith(".dist-info/METADATA"))
    return message_from_bytes(ZipFile(wheel).read(name))


def requirements(wheel: Path) -> list[Requirement]:
    return [Requirement(each) for each in metadata_of(wheel).get_all("Requires-Dist", [])]


def is_required(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras))


def roots(found: Distribution) -> Iterator[Path]:
    """Return the files and directories of a distribution directly in site-packages."""
    place = Path(str(found.locate_file("")))
    names = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
    yield from (place / name for name in sorted(names) if name != "__pycache__")


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of the wheel in its own environment.

    No index is used: the declared requirements are links to the environment of this test, which has
    the locked versions; undeclared packages are absent.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    (library,) = place.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install"]
    run(*pip, "--quiet", "--no-deps", "--no-index", wheel, cwd=place)
    for found in needed(requirements(wheel)).values():
        for root in roots(found):
            (library / root.name).symlink_to(root)
    return place / "bin" / "skipring"


@pytest.mark.heavy
def test_environment_imports_the_wheel_and_not_the_working_tree(
    program: Path, tmp_path: Path
) -> None:
    say = "import skipring, sys; print(skipring.__file__); import pyspark"
    done = run(program.parent / "python", "-c", say, cwd=tmp_path, check=False)
    assert Path(done.stdout.strip()).is_relative_to(program.parents[1])
    assert "No module named 'pyspark'" in done.stderr


@pytest.mark.heavy
def test_command_of_the_wheel_runs(program: Path, tmp_path: Path) -> None:
    version = run(program, "--version", cwd=tmp_path).stdout
    assert version.split()[-1] == project()["version"]
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
others = ("skipring.spark.", "skipring.lab.bench.")
others += ("skipring.lab.experiments.", "skipring.report.", "skipring.lab.demo.spark_program")
others += ("skipring.__main__", "skipring.web.")
for name in found:
    if not name.startswith(others):
        importlib.import_module(name)
print(len(found))
"""
    done = run(program.parent / "python", "-c", code, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 200


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("dashboard",), "dashboard"),
        (("dev", "--dashboard"), "dashboard"),
        (("lab", "run", "m.toml", "--out", "o"), "spark"),
        (("lab", "report", "o"), "spark"),
        *((("pipeline", each, "o"), "spark") for each in ("init", "run", "report", "optimize")),
        (("bench", "spark"), "spark"),
        (("bench", "pipeline"), "spark"),
    ],
)
def test_command_of_a_missing_extra_names_it(
    words: tuple[str, ...], extra: str, program: Path, tmp_path: Path
) -> None:
    done = run(program, *words, cwd=tmp_path, check=False)
    said = f"skipring {words[0]} needs: pip install 'skipring[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.heavy
def test_demo_runs_from_the_wheel(program: Path, tmp_path: Path) -> None:
    words = ["demo", "--headless", "--assert", "--n", "5", "--tick", "0.1"]
    done = run(program, *words, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes have the same root hash" in done.stdout
    assert "skipring[spark]" in done.stdout  # the demo names the extras that are missing
    assert "skipring[dashboard]" in done.stdout
    assert list(tmp_path.iterdir()) == []
