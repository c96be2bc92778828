"""The house rules: imports, the lock, the Makefile and files that must not go stale."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.sharing import HOUSE, SECONDS, SINGLE, SPARK, share_of

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {"setup", "demo", "test", "check", "slow", "bench", "tables", "faults", "soak"}
README = ROOT / "README.md"


def run(*command: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a user would: without stdin and without variables of an outer make."""
    inherited = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL"}}
    return subprocess.run(
        command,
        cwd=cwd,
        env=inherited | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# --- imports ---------------------------------------------------------------------------


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return run(
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
        cwd=root,
        PYTHONPATH=str(root / "src"),
    )


def test_imports_point_downwards() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/labels.py", "import time", "know no clock"),
        ("core/labels.py", "import skipring.core.messages", "Modules of skipring.core"),
        ("errors.py", "import skipring.core.labels", "Packages import"),
        ("core/unplaced.py", "", "Modules of skipring.core"),
    ],
)
def test_import_that_points_upwards_is_detected(
    module: str, line: str, contract: str, tmp_path: Path
) -> None:
    for name in ("src", "faults"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "skipring" / module).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")

    result = lint_imports(tmp_path)

    assert result.returncode == 1, result.stdout + result.stderr
    broken = [text for text in result.stdout.splitlines() if text.endswith("BROKEN")]
    assert any(contract in text for text in broken), result.stdout


def test_help_is_quick_because_heavy_modules_are_not_imported() -> None:
    program = "import sys; sys.argv = ['skipring', '--help']; from skipring.cli import main; main()"
    result = run(sys.executable, "-X", "importtime", "-c", program)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Usage: skipring" in result.stdout

    imported = set(re.findall(r"^import time:.*\| +(\S+)$", result.stderr, re.MULTILINE))
    assert "skipring.cli" in imported
    heavy = {name for name in imported if re.match(r"(rich|skipring\.sim)(\.|$)", name)}
    assert heavy == set()


# --- no file depends on one machine ----------------------------------------------------

NOT_OURS = re.compile(
    r"\.git|\.venv.*|\.\w+_cache|\.hypothesis|__pycache__|build|dist|.*\.egg-info"
)

# Written so that no pattern matches its own text.
OF_ONE_MACHINE = re.compile(
    r"""
      \bpypi\.org | pythonhosted\.org            # package indexes
    | https?://[^\s"'<>]+/simple\b
    | --(?:extra-)?index-url | --find-link[s]
    | (?<![\w.~/-])/(?:root|work|home|Users)/    # places of one machine
    | [.]pyenv/ | \bfile:/{3}
    """,
    re.VERBOSE,
)


def our_files(directory: Path = ROOT) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if NOT_OURS.fullmatch(path.name) or path.is_symlink():
            continue
        if path.is_dir():
            yield from our_files(path)
        elif path.is_file():
            yield path


def test_no_file_contains_a_package_index_or_a_local_path() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in our_files()
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1)
        if (match := OF_ONE_MACHINE.search(line))
    ]
    assert found == []


@pytest.mark.parametrize(
    "parts",
    [
        ("https://", "pypi", ".org/project/click"),
        ("https://mirror.example", "/simple", "/"),
        ("--extra", "-index-url"),
        ("'", "/root", "/.cache'"),
        ("data_dir=", "/home", "/ann/ring"),
    ],
)
def test_package_index_or_local_path_is_detected(parts: tuple[str, ...]) -> None:
    assert OF_ONE_MACHINE.search("".join(parts))


@pytest.mark.parametrize("text", ["docs/work/plan.md", "~/.skipring", "https://example.org/home/"])
def test_other_paths_are_allowed(text: str) -> None:
    assert not OF_ONE_MACHINE.search(text)


# --- the lock --------------------------------------------------------------------------


def locked() -> dict[str, tuple[Requirement, int]]:
    """Return each locked requirement by name, with the number of its hashes."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    pins = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            pin, *hashes = line.split("--hash=sha256:")
            requirement = Requirement(pin.strip())
            pins[canonicalize_name(requirement.name)] = (requirement, len(hashes))
    return pins


def test_lock_pins_every_package_by_version_and_hash() -> None:
    pins = locked()
    assert pins
    for requirement, hashes in pins.values():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        assert hashes > 0, requirement


def test_lock_satisfies_the_requirements_of_the_project() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    pins = locked()
    wanted = pyproject["project"]["dependencies"] + pyproject["dependency-groups"]["dev"]
    for extra in ("dashboard", "spark"):
        wanted += pyproject["project"]["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not in requirements.lock: run `make lock`"
        (pin,) = pins[name][0].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement}: run `make lock`"


# --- commands --------------------------------------------------------------------------


def test_make_without_a_target_explains_each_target() -> None:
    result = run("make")
    assert result.returncode == 0, result.stderr
    assert set(re.findall(r"^make (\w+) +\w", result.stdout, re.MULTILINE)) >= TARGETS


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")


def test_files_named_in_the_test_distribution_exist() -> None:
    names = {*SECONDS, *SINGLE} - {SPARK}
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("nodeid", "share"),
    [
        ("tests/spark/test_source.py::test_a[b::c]", SPARK),
        ("tests/spark/test_stream.py::test_a", "tests/spark/test_stream.py"),
        ("tests/spark/test_offsets.py::test_a", "tests/spark/test_offsets.py"),
        ("tests/core/test_ring.py::test_a", "tests/core/test_ring.py"),
        ("tests/house/test_names.py::test_a", HOUSE),
        ("tests/properties/test_x.py::test_a[1]", "tests/properties/test_x.py::test_a[1]"),
    ],
)
def test_tests_with_a_common_session_have_one_worker(nodeid: str, share: str) -> None:
    assert share_of(nodeid) == share


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_contains_its_two_commands(command: str) -> None:
    assert command in README.read_text(encoding="utf-8")
