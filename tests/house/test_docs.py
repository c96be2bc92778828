"""Docs that must not go stale: named files and tests exist, links work, commands are valid."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.cli.simulate import scenario_values
from skipring.core.config import MODE_RULES, Mode, Rule
from skipring.errors import InputError
from skipring.sim.scenario import make_scenario, read_scenario

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "skipring"
DECISIONS = ROOT / "docs" / "decisions"
INDEX = DECISIONS / "README.md"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))
PAPER_MAP = ROOT / "docs" / "paper-map.md"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted(ROOT.glob("docs/**/*.md")),
]

# The points of the protocol study that are built, and R17, which is ours; the study's numbers have
# gaps, and its R3 to R7 went into the others.
POINTS = [
    *(f"S{number}" for number in range(1, 12)),
    *(f"B{number}" for number in (*range(2, 10), *range(11, 15))),
    *(f"C{number}" for number in range(2, 6)),
    *(f"R{number}" for number in (1, 2, *range(8, 18))),
    *(f"T{number}" for number in (1, 2, 3, 4, 6, *range(8, 13), 14, 16, 18, 19)),
]
SECTIONS = ["Question", "Choice", "Cost", "Evidence"]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def names_of(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


on_every_page = pytest.mark.parametrize("page", PAGES, ids=names_of(PAGES))
named_in = pytest.mark.parametrize(
    "page", [PAPER_MAP, INDEX, *RECORDS], ids=names_of([PAPER_MAP, INDEX, *RECORDS])
)
of_every_record = pytest.mark.parametrize("record", RECORDS, ids=names_of(RECORDS))


# --- text ------------------------------------------------------------------------------

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def code_words(text: str) -> list[str]:
    """Return the text between backticks, in order, outside code blocks."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def commands(text: str) -> list[str]:
    """Return the skipring command lines in code blocks."""
    blocks = "\n".join(FENCED.findall(text))
    return re.findall(r"^\$ (skipring .*)$", blocks, re.MULTILINE)


def mentions(text: str, point: str) -> bool:
    """Return True if a text names a point; S11 and A1S1 do not name S1."""
    return re.search(rf"(?<!\w){re.escape(point)}(?!\w)", text) is not None


# --- modules, names and tests ----------------------------------------------------------


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names that a file defines, dotted for methods and attributes of a class."""
    return frozenset(_definitions(ast.parse(read(path)), ""))


def _definitions(scope: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _definitions(node, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
                yield from (prefix + found for found in _assigned_to_self(node))
            case ast.Assign(targets=targets):
                yield from (prefix + target.id for target in targets if _is_name(target))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _assigned_to_self(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


FILE = re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)*/[\w-]+\.[a-z]+)(?P<rest>.*)")
TEST = re.compile(r"test_\w+")


def missing(text: str) -> list[str]:
    """Return the files, names and tests that a page names and that do not exist.

    A file is written below src/skipring or below the root, a name in it after a colon, a test
    after two. A test without a file belongs to the test file named last before it.
    """
    found = []
    tests: frozenset[str] = frozenset()
    for word in code_words(text):
        if TEST.fullmatch(word):
            if word not in tests:
                found.append(word)
        elif (match := FILE.fullmatch(word)) is not None:
            path = _file(match["path"])
            if path is None or not _has(path, match["rest"]):
                found.append(word)
            elif path.name.startswith("test_") and not match["rest"]:
                tests = definitions(path)
    return found


def _file(name: str) -> Path | None:
    return next((path for path in (PACKAGE / name, ROOT / name) if path.is_file()), None)


def _has(path: Path, rest: str) -> bool:
    """Return True if a file defines the name after it: ``:name``, ``::test`` or none."""
    is_test = path.is_relative_to(ROOT / "tests")
    name = rest.removeprefix("::" if is_test else ":")
    return not rest or (name != rest and name in definitions(path))


@named_in
def test_every_named_file_definition_and_test_exists(page: Path) -> None:
    assert missing(read(page)) == []


def test_existing_names_are_not_reported() -> None:
    text = """
    `core/ring.py`, `src/skipring/core/ring.py`, `core/ring.py:Ring`, `core/ring.py:Ring.wrap`,
    `core/roster.py:Roster.repair`, `core/peers.py:NodeId`, `core/messages.py:Introduce.peer`,
    `scenarios/storm.toml`, `tests/house/test_docs.py`: `test_existing_names_are_not_reported`,
    `tests/house/test_house.py::test_imports_point_downwards`, `Ring.flies`, `1/2`
    ```
    `core/of_no_concern.py`
    ```
    """.replace("\n    ", "\n")
    assert missing(text) == []


@pytest.mark.parametrize(
    "word",
    [
        "core/wheel.py",
        "src/skipring/core/wheel.py",
        "core/ring.py:Ring.flies",
        "core/ring.py:flies",
        "core/ring.py:Ring.",
        "core/ring.py::Ring",
        "core/ring.py and more",
        "core/peers.py:Side.opposite.name",
        "scenarios/calm.toml",
        "tests/house/test_mouse.py",
        "tests/house/test_docs.py::test_that_does_not_exist",
        "tests/house/test_docs.py:test_existing_names_are_not_reported",
        "test_that_does_not_exist",
    ],
)
def test_nonexistent_names_are_reported_as_missing(word: str) -> None:
    text = f"`tests/house/test_docs.py`, `{word}`"
    assert missing(text) == [word]


def test_test_name_is_resolved_in_the_file_named_last() -> None:
    name = "test_existing_names_are_not_reported"
    assert missing(f"`{name}`") == [name]
    assert missing(f"`tests/house/test_docs.py`: `{name}`") == []
    assert missing(f"`tests/house/test_house.py`: `{name}`") == [name]
    other = "`tests/house/test_house.py::test_imports_point_downwards`"
    assert missing(f"`tests/house/test_docs.py`: {other}, `{name}`") == []


# --- links -----------------------------------------------------------------------------


def broken_links(text: str, folder: Path) -> list[str]:
    """Return the relative links of a page in ``folder`` without a target."""
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", FENCED.sub("", text))
    relative = [target for target in targets if not re.match(r"[a-z]+:|#", target)]
    return [target for target in relative if not (folder / target.partition("#")[0]).exists()]


@on_every_page
def test_every_relative_link_has_a_target(page: Path) -> None:
    assert broken_links(read(page), page.parent) == []


def test_broken_link_is_detected() -> None:
    text = "[a](README.md) [b](../nowhere.md) [c](#here) [d](https://example.org/x) [e](gone.md#f)"
    assert broken_links(text, DECISIONS) == ["../nowhere.md", "gone.md#f"]


# --- commands --------------------------------------------------------------------------


def refused(command: str) -> str | None:
    """Return the reason why skipring would refuse a command, or None; run nothing."""
    words, program = shlex.split(command, comments=True)[1:], skipring
    try:
        while isinstance(program, click.Group):
            name, *words = words or [""]
            program = program.commands[name]
        # Commands keep the help option that they are first asked for: ask as the program does.
        context = program.make_context(name, words, help_option_names=["-h", "--help"])
        if name == "simulate":
            _refuse_scenario(dict(context.params))
    except (click.ClickException, InputError, KeyError, ValueError) as error:
        return repr(error)
    return None


def _refuse_scenario(options: dict[str, object]) -> None:
    file, *_ = (options.pop(name) for name in ("scenario", "load", "dump", "dump_start", "as_json"))
    values = read_scenario(ROOT / file) if isinstance(file, Path) else {}
    scenario = make_scenario({**values, **scenario_values(options)})
    idle = set(scenario.without) - MODE_RULES[scenario.mode]
    if idle:
        raise ValueError(f"{sorted(idle)} cannot be off in mode {scenario.mode}: nothing is shown")


COMMANDS = [(page, command) for page in (INDEX, *RECORDS) for command in commands(read(page))]


@pytest.mark.parametrize(
    ("page", "command"), COMMANDS, ids=[f"{page.stem[:4]}: {command}" for page, command in COMMANDS]
)
def test_every_shown_command_is_accepted(page: Path, command: str) -> None:
    assert refused(command) is None, page.name


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(
    "command",
    [
        "skipring imitate",
        "skipring simulate --adversary A99",
        "skipring simulate --size 8",
        "skipring simulate --without R99",
        "skipring simulate --mode paper --without R1",
        "skipring simulate scenarios/calm.toml",
        "skipring bench sim --n 0",
    ],
)
def test_invalid_command_is_detected(command: str) -> None:
    assert refused(command) is not None


# --- the records and their index -------------------------------------------------------

ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def index() -> dict[str, tuple[str, str, str]]:
    """Return the rows of the index by file: number, title and points."""
    return {
        file: (number, title, points) for number, file, title, points in ROW.findall(read(INDEX))
    }


def test_index_lists_exactly_the_existing_records() -> None:
    assert list(index()) == [record.name for record in RECORDS]


def test_records_are_numbered_without_gaps() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert numbers == [f"{number:04d}" for number in range(1, len(RECORDS) + 1)]


@of_every_record
def test_number_and_title_of_a_record_match_the_index(record: Path) -> None:
    number, title, _ = index()[record.name]
    assert read(record).startswith(f"# {number}: {title}\n")
    assert record.name.startswith(f"{number}-")


@of_every_record
def test_record_has_its_four_parts_on_one_page(record: Path) -> None:
    text = read(record)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert 30 <= len(text.splitlines()) <= 70


@of_every_record
def test_record_mentions_every_point_that_the_index_assigns_to_it(record: Path) -> None:
    _, _, points = index()[record.name]
    text = read(record).partition("## Question")[2]  # the title of a record is no treatment
    named = [point for point in [*POINTS, *Rule] if mentions(points, point)]
    assert [point for point in named if not mentions(text, point)] == []


@pytest.mark.parametrize("point", [*POINTS, *(rule for rule in Rule if rule not in POINTS)])
def test_every_point_and_every_rule_has_one_record(point: str) -> None:
    assert sum(mentions(points, point) for _, _, points in index().values()) == 1


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_is_in_the_table_of_rules_with_its_modes(rule: Rule) -> None:
    table = read(next(record for record in RECORDS if record.name.startswith("0002")))
    (row,) = re.findall(rf"^\| {re.escape(rule)} \|(.*)\|(.*)\|.*\|.*\|$", table, re.MULTILINE)
    modes = [mode for mode, cell in zip(("fixed", "fast"), row, strict=True) if cell.strip()]
    assert modes == [mode for mode in (Mode.FIXED, Mode.FAST) if rule in MODE_RULES[mode]]
    assert rule in MODE_RULES[Mode.DETERMINISTIC]


def test_longer_point_does_not_mention_a_shorter_one() -> None:
    assert mentions("S1, S3", "S1")
    assert mentions("(B13) and k+1.", "k+1")
    assert not mentions("S11, S3", "S1")


# --- the map ---------------------------------------------------------------------------

# Headings and titles of the paper; the map must have something to say about each.
IN_THE_PAPER = [
    *("1.1 Model", "1.2 Related Work", "1.3 Our Contribution"),
    *("2.1 Skip Ring", "2.2 Self-Stabilizing Ring"),
    *("3.1 Supervisor Protocol", "3.2 Subscriber Protocol", "3.2.1 Receiving correct Labels"),
    *("3.2.2 Maintaining Shortcuts", "3.3 Handling Subscriber Failures"),
    *("4.1 Subscribe/Unsubscribe", "4.2 Publish", "4.3 Flooding"),
    *("Section 5: Analysis", "Section 6: Conclusion"),
    *("Definition Self-stabilization", "Definition Skip Ring", "Lemma Node Degree"),
    *("Lemma: BuildRing", "Theorem: fewer than one request", "Lemma (unsubscribe)"),
    *("Theorem: constant overhead", "Theorem Network Convergence", "Lemma Supervisor Validity"),
    *("Lemma Supervisor Convergence", "Lemma Ring Convergence", "Lemma Shortcut Convergence"),
    *("Theorem Network Closure", "Lemma Supervisor Closure", "Lemma Ring Closure"),
    *("Lemma Shortcut Closure", "Theorem Publication Convergence", "Corollary: the potential"),
    *("Lemma: the potential never increases", "Lemma: the potential of an edge"),
    *("Claim: CheckTrie", "Claim: p", "Theorem Publication Closure"),
    *("Figure: SR(16)", "Figure: two Patricia tries"),
    *(f"Algorithm {number}" for number in range(1, 6)),
]

PROCEDURES = [
    *("BuildListTimeout", "Check", "Linearize", "BuildRingTimeout", "Introduce"),
    *("Subscribe", "Unsubscribe", "GetConfiguration", "CheckMultipleCopies", "CheckLabels"),
    *("Timeout", "SetData", "IntroduceShortcut", "RemoveConnections"),
    *("PublishTimeout", "Publish", "CheckTrie", "CheckAndPublish", "PublishNew"),
]


@pytest.mark.parametrize("title", IN_THE_PAPER)
def test_map_lists_every_section_and_every_statement(title: str) -> None:
    assert title in read(PAPER_MAP)


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_map_lists_every_procedure_of_the_pseudocode(procedure: str) -> None:
    assert mentions(read(PAPER_MAP).partition("## Appendix A")[2], procedure)


def test_every_numbered_test_file_is_in_the_map() -> None:
    files = names_of(sorted(ROOT.glob("tests/paper/test_*.py")))
    assert [file for file in files if f"`{file}`" not in read(PAPER_MAP)] == []


def test_every_module_of_the_core_is_in_the_map() -> None:
    modules = [f"core/{path.name}" for path in sorted(PACKAGE.glob("core/[a-z]*.py"))]
    assert [module for module in modules if f"`{module}" not in read(PAPER_MAP)] == []


def test_first_simulation_prints_the_output_on_its_page() -> None:
    lines = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("$ skipring simulate --n 64"))
    command = lines[at].removeprefix("$ skipring ").split()
    got = CliRunner().invoke(skipring, command)
    assert got.output.strip() == lines[at + 1]
