"""``skipring simulate``: output, refusals, watching and interrupting."""

import json
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

from skipring.cli import main
from skipring.world.adversaries import legitimate_world
from skipring.world.format import parse_world, render_world
from skipring.world.legitimacy import is_strictly_legitimate
from tests.support.commands import COMMAND, DEADLINE_S, on_terminal, plain

Run: TypeAlias = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[2]
KEYS = [
    *("adversary", "closure_ok", "converged", "delivered_by_repair", "delivered_by_spreading"),
    *("duplicates", "events", "hops_max", "hops_mean", "messages", "mode", "n", "published"),
    *("rounds_explicit", "rounds_publications", "rounds_strict", "seed"),
    *("supervisor_requests", "violations"),
]
FAILS = ("--mode", "paper", "--adversary", "A12", "--n", "32", "--max-rounds", "25")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Simulate in an empty directory; return exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run_words(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["skipring", "simulate", *words])
        with pytest.raises(SystemExit) as exited:
            main()
        assert isinstance(exited.value.code, int)
        return exited.value.code, *capsys.readouterr()

    return run_words


# --- the report ------------------------------------------------------------------------


def test_report_is_one_json_line_with_the_documented_keys(run: Run) -> None:
    status, printed, said = run("--n", "6", "--adversary", "A05", "--seed", "7")
    assert (status, said) == (0, "")
    assert printed.count("\n") == 1
    report = json.loads(printed)
    assert list(report) == sorted(report) == KEYS
    given = {"n": 6, "adversary": "A05", "seed": 7, "mode": "fast"}
    good = {"converged": True, "closure_ok": True, "violations": [], "rounds_publications": 0}
    assert report == report | given | good
    assert 0 < report["rounds_explicit"] <= report["rounds_strict"]
    assert 0 < report["supervisor_requests"] < report["messages"] < report["events"]


def test_equal_seeds_print_equal_bytes_and_other_seeds_do_not(run: Run) -> None:
    first = run("--adversary", "A15", "--seed", "3")
    assert run("--adversary", "A15", "--seed", "3", "--json") == first
    assert run("--adversary", "A15", "--seed", "4") != first


def test_default_run_is_a_clean_start_of_16(run: Run) -> None:
    assert run() == run("--n", "16", "--adversary", "A00", "--mode", "fast", "--seed", "0")


def test_failed_run_is_reported_and_exits_with_3(run: Run) -> None:
    status, printed, said = run(*FAILS)
    assert status == 3
    report = json.loads(printed)
    assert list(report) == KEYS
    assert (report["converged"], report["closure_ok"]) == (False, None)
    assert (report["rounds_explicit"], report["rounds_strict"]) == (None, None)
    assert 1 <= len(report["violations"]) <= 10
    assert said.startswith("replay: skipring simulate ")


def test_options_override_the_file(run: Run) -> None:
    Path("s.toml").write_text('n = 5\nadversary = "A05"\nwithout = ["R9"]\nseed = 3\n')
    from_file = run("s.toml")
    assert from_file == run("--n", "5", "--adversary", "A05", "--without", "R9", "--seed", "3")
    assert run("s.toml", "--n", "9", "--seed", "4") == run(
        *("--n", "9", "--adversary", "A05", "--without", "R9", "--seed", "4")
    )


def test_dead_neighbours_in_the_paper_are_a_scenario_that_fails(run: Run) -> None:
    path = ROOT / "scenarios" / "papers-dead-neighbours.toml"
    assert run(str(path), "--max-rounds", "50")[0] == 3
    assert run(str(path), "--mode", "fixed")[0] == 0


# --- world files -----------------------------------------------------------------------


def test_first_and_last_state_are_written(run: Run) -> None:
    status, *_ = run("--n", "5", "--dump-start", "start.json", "--dump", "end.json")
    assert status == 0
    start, end = (parse_world(Path(name).read_text()) for name in ("start.json", "end.json"))
    assert start.supervisor.database == ()
    assert start.subscribers.keys() == end.subscribers.keys()
    assert is_strictly_legitimate(end)


@pytest.mark.parametrize("adversary", ["A05", "A18"])
def test_loaded_start_repeats_the_run(adversary: str, run: Run) -> None:
    words = ("--n", "12", "--adversary", adversary, "--seed", "5", "--dump-start", "start.json")
    status, printed, said = run(*words)
    again = run("--load", "start.json", "--seed", "5", "--dump-start", "again.json")
    assert (again[0], again[2]) == (status, said)
    assert json.loads(again[1]) == json.loads(printed) | {"adversary": None}
    assert Path("again.json").read_bytes() == Path("start.json").read_bytes()


def test_legitimate_world_is_loaded_and_stays_unchanged(run: Run) -> None:
    Path("w.json").write_text(render_world(legitimate_world(7, Random(0))))
    status, printed, _ = run("--load", "w.json", "--dump", "end.json")
    report = json.loads(printed)
    assert status == 0
    assert (report["n"], report["adversary"], report["rounds_strict"]) == (7, None, 0)


# --- bad input -------------------------------------------------------------------------


def world(**changes: object) -> dict[str, Any]:
    state = {"member": True, "label": "0", "left": None, "right": None, "ring": None}
    return {
        "format": "skipring-world/1",
        "topic": "news",
        "supervisor": {"database": [["0", "a"]], "next": 0},
        "subscribers": {"a": state | {"shortcuts": {}}},
    } | changes


def unknown_message() -> dict[str, Any]:
    return world(channels=[{"to": "a", "message": {"type": "Explode", "node": "a"}}])


WORLDS: dict[str, tuple[object, str]] = {
    "wrong type": (world(subscribers=[]), "Error: w.json: $.subscribers: Expected `object`"),
    "unknown message": (
        unknown_message(),
        "Error: w.json: $.channels[0].message.type: Invalid value",
    ),
    "undeclared node": (
        world(supervisor={"database": [["0", "b"]], "next": 0}),
        "Error: w.json: $.supervisor.database[0][1]: 'b' is neither in subscribers nor in crashed",
    ),
    "long label": (
        world(supervisor={"database": [["1" * 10**6, "a"]], "next": 0}),
        "Error: w.json: $.supervisor.database[0][0]: Expected `str` of length <= 4096",
    ),
    "unknown key": (world(extra=1), "Error: w.json: $: Object contains unknown field `extra`"),
    "another format": (
        world(format="skipring-world/2"),
        "Error: w.json: $.format: Invalid enum value",
    ),
    "not an object": ([], "Error: w.json: $: Expected `object`, got `array`"),
}
COMMANDS: dict[str, tuple[list[str], str]] = {
    "n is negative": (["--n", "-1"], "Error: n: expected a whole number >= 1"),
    "n is 0": (["--n", "0"], "Error: n: expected a whole number >= 1"),
    "n is too large": (["--n", "1" + "0" * 30], "Error: n: expected a whole number <= 1000000"),
    "n is no number": (["--n", "many"], "Error: Invalid value for '--n'"),
    "loss is too large": (["--loss", "1"], "Error: loss: expected a number < 1"),
    "loss is no number": (["--loss", "nan"], "Error: loss: expected a number >= 0"),
    "churn is negative": (["--churn", "-0.1"], "Error: churn: expected a number >= 0"),
    "max-rounds is negative": (
        ["--max-rounds", "-1"],
        "Error: max_rounds: expected a whole number >= 0",
    ),
    "no such adversary": (["--adversary", "A99"], "Error: adversary: 'A99' is not one of"),
    "no such scheduler": (["--scheduler", "x"], "Error: scheduler: 'x' is not one of random,"),
    "no such mode": (
        ["--mode", "slow"],
        "Error: mode: expected one of paper, fixed, fast, deterministic, got 'slow'",
    ),
    "no such rule": (["--without", "R9,R99"], "Error: without[1]: expected one of R1, R2,"),
    "no such spread": (["--spread", "x"], "Error: spread: expected one of adaptive,"),
    "no such option": (["--nodes", "3"], "Error: No such option '--nodes'"),
    "no value": (["--n"], "Error: Option '--n' requires an argument"),
    "two scenarios": (["good.toml", "good.toml"], "Error: Got unexpected extra argument"),
    "load with n": (["--load", "good.json", "--n", "1"], "Error: --load sets"),
    "load with adversary": (["--load", "good.json", "--adversary", "A00"], "Error: --load sets"),
    "no such world": (["--load", "absent.json"], "Error: cannot read absent.json: No such file"),
    "a folder as world": (["--load", "folder"], "Error: Invalid value for '--load': File"),
    "no such scenario": (["absent.toml"], "Error: cannot read the scenario absent.toml: No such"),
    "a folder as scenario": (["folder"], "Error: Invalid value for '[SCENARIO]': File"),
    "a folder to dump into": (["--dump", "folder"], "Error: Invalid value for '--dump': File"),
    "dump into a missing folder": (
        ["--dump", "nowhere/x.json"],
        "Error: cannot write nowhere/x.json: no directory nowhere",
    ),
    "dump-start into a missing folder": (
        ["--dump-start", "nowhere/x.json"],
        "Error: cannot write nowhere/x.json: no directory nowhere",
    ),
    "not JSON": (["--load", "bad.txt"], "Error: bad.txt: line 1, column 1: not JSON"),
    "not TOML": (["bad.txt"], "Error: bad.txt is not valid TOML: "),
    "not UTF-8 as world": (["--load", "latin.txt"], "Error: latin.txt: byte 0: not UTF-8"),
    "not UTF-8 as scenario": (["latin.txt"], "Error: cannot read the scenario latin.txt: not UTF"),
    "unknown key": (["unknown.toml"], "Error: unknown.toml: unknown key 'nodes'"),
    "wrong type": (["type.toml"], "Error: type.toml: n: expected a whole number, got"),
}


def assert_refused(answer: tuple[int, str, str], sentence: str) -> None:
    """Assert exit status 2 and one short sentence, below the usage for a usage error."""
    status, printed, said = answer
    *usage, last = said.splitlines()
    assert (status, printed) == (2, "")
    assert last.startswith(sentence)
    assert said.count("Error:") == 1
    assert not usage or usage[0].startswith("Usage: skipring simulate")
    assert len(said) < 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory of good and bad files."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "good.json").write_text(json.dumps(world()))
    (tmp_path / "good.toml").write_text("n = 2")
    (tmp_path / "bad.txt").write_text("nonsense")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    (tmp_path / "unknown.toml").write_text("nodes = 2")
    (tmp_path / "type.toml").write_text('n = "2"')
    return tmp_path


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", COMMANDS)
def test_bad_input_is_refused_in_one_sentence(case: str, folder: Path, run: Run) -> None:
    words, sentence = COMMANDS[case]
    before = listing(folder)
    # An option given twice counts as given last: some of the cases are about these two.
    assert_refused(run("--dump", "end.json", "--dump-start", "start.json", *words), sentence)
    assert listing(folder) == before


@pytest.mark.parametrize("case", WORLDS)
def test_bad_world_is_refused_in_one_sentence(case: str, tmp_path: Path, run: Run) -> None:
    tree, sentence = WORLDS[case]
    Path("w.json").write_text(json.dumps(tree))
    before = listing(tmp_path)
    words = ("--load", "w.json", "--dump", "end.json", "--dump-start", "start.json")
    assert_refused(run(*words), sentence)
    assert listing(tmp_path) == before


def test_valid_files_beside_invalid_ones_are_accepted(folder: Path, run: Run) -> None:
    assert run("--load", "good.json")[0] == 0
    assert run("good.toml")[0] == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("n = " + "1" * 5000, "Error: bad.toml"), ("n = " + "[" * 5000, "Error: bad.toml")],
    ids=["a number of 5000 digits", "nested too deeply"],
)
def test_unrepresentable_toml_is_refused(content: str, sentence: str, run: Run) -> None:
    Path("bad.toml").write_text(content)
    assert_refused(run("bad.toml"), sentence)


# --- replaying -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        FAILS,
        ("my scenario.toml", "--seed", "-3"),
        ("--load", "my world.json", "--mode", "paper", "--without", "R9, S11", "--max-rounds", "0"),
        ("--n", "9", "--loss", "0.25", "--duplicate", "0.5", "--churn", "0.3", "--max-rounds", "0"),
    ],
)
def test_failed_run_prints_a_replay_command_that_fails_the_same_way(
    words: tuple[str, ...], run: Run
) -> None:
    scenario = 'mode = "paper"\nadversary = "A36"\nn = 32\nmax_rounds = 25\nclosure = 3\n'
    Path("my scenario.toml").write_text(scenario)
    Path("my world.json").write_text(json.dumps(world(supervisor={"database": [], "next": 0})))
    failed = run(*words)
    assert failed[0] == 3
    (line,) = failed[2].splitlines()
    assert line.startswith("replay: skipring simulate ")
    _, _, *again = shlex.split(line.removeprefix("replay: "))
    assert run(*again) == failed


# --- a terminal ------------------------------------------------------------------------

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

simulated = partial(on_terminal, "simulate")
QUICK = ("--n", "16", "--adversary", "A15", "--pace", "0")
ENDLESS = ("--mode", "paper", "--adversary", "A12", "--n", "64", "--max-rounds", "1000000")


def assert_cursor_is_back(text: str) -> None:
    assert HIDE_CURSOR in text
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


LAYERS = (
    *("database", "labels", "neighbours", "shortcuts", "leavers", "in flight", "publications"),
)


def test_terminal_shows_round_and_layers_and_then_the_outcome() -> None:
    with simulated("--n", "64", "--adversary", "A15", "--pace", "0") as shown:
        assert shown.read_all() == 0
    assert "round 0" in shown.shown
    assert "begins with A15: Everything is arbitrary" in shown.shown
    assert "wrong" in shown.shown
    assert_cursor_is_back(shown.shown)
    outcome = plain(shown.shown[shown.shown.rindex(SHOW_CURSOR) :])
    for layer in LAYERS:
        assert re.search(rf"{layer} +✓ right", outcome), layer
    assert "converged: explicit after " in outcome
    assert "{" not in shown.shown


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (30, 9)])
def test_picture_fits_into_the_terminal(columns: int, rows: int) -> None:
    words = ("--n", "33", "--adversary", "A15", "--pace", "0.01")
    with simulated(*words, COLUMNS=str(columns), LINES=str(rows)) as shown:
        assert shown.read_all() == 0
    pictures = plain(shown.shown[: shown.shown.rindex(SHOW_CURSOR)])
    assert max(each.count("\n") for each in re.split(r"round \d+   ", pictures)) <= rows
    lines = pictures.splitlines()
    assert max(len(line) for line in lines) <= columns
    assert "..." not in {line.strip() for line in lines}  # three dots would mark a cut


def test_ascii_terminal_gets_ascii_only() -> None:
    with simulated(*QUICK, PYTHONIOENCODING="ascii") as shown:
        assert shown.read_all() == 0
    assert shown.shown.isascii()
    assert "ok right" in shown.text


def test_terminal_shows_violations_and_replay_command_of_a_failed_run() -> None:
    with simulated(*FAILS, "--pace", "0") as shown:
        assert shown.read_all() == 3
    outcome = shown.shown[shown.shown.rindex(SHOW_CURSOR) :]
    assert "not converged" in outcome
    assert "should be" in outcome
    assert "replay: skipring simulate --mode paper" in outcome


def test_ctrl_c_on_a_terminal_exits_with_130_and_restores_the_cursor() -> None:
    with simulated(*ENDLESS) as shown:
        shown.read_until("round ")
        assert shown.interrupt() == 130
    assert "Traceback" not in shown.shown
    assert "interrupted" in shown.shown
    assert_cursor_is_back(shown.shown)


def test_ctrl_c_exits_with_130_without_a_report(tmp_path: Path) -> None:
    end = tmp_path / "end.json"
    # The first state is written just before the run begins, so the test waits for it.
    words = (*ENDLESS, "--dump-start", "/dev/stdout", "--dump", str(end))
    command = [*COMMAND, "simulate", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            ready, _, _ = select.select([program.stdout], [], [], DEADLINE_S)
            assert ready
            program.send_signal(signal.SIGINT)
            printed, said = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
    assert (program.returncode, said.strip()) == (130, "interrupted")
    assert "converged" not in printed
    assert not end.exists()
