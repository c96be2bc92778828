"""Matrix of the lab: the runs that a file describes, and refused files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from skipring.core.config import MODE_RULES, Mode, Rule
from skipring.errors import InputError
from skipring.lab.experiments import matrix as matrix_module
from skipring.lab.experiments.matrix import KINDS, Matrix, Trial, read_matrix
from skipring.world.adversaries import ADVERSARIES

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def asked(tmp_path: Path, *blocks: str, title: str = 'title = "t"') -> Matrix:
    path = tmp_path / "m.toml"
    text = "\n".join([title, *(f"[[experiment]]\n{block}" for block in blocks)])
    path.write_text(text, encoding="utf-8")
    return read_matrix(path)


def test_matrix_contains_the_product_of_all_lists(tmp_path: Path) -> None:
    block = """
    kind = "converge"
    n = [4, 8, 16]
    adversary = ["A00", "A15"]
    loss = [0.0, 0.2]
    seeds = 5
    """
    runs = asked(tmp_path, block).runs
    assert len(runs) == len(set(runs)) == 3 * 2 * 2 * 5
    assert Counter(run.n for run in runs) == {4: 20, 8: 20, 16: 20}
    assert {run.seed for run in runs} == set(range(5))


def test_omitted_keys_have_the_defaults_of_simulate(tmp_path: Path) -> None:
    (run,) = asked(tmp_path, 'kind = "converge"\nn = 16').runs
    assert (run.adversary, run.scheduler, run.mode, run.spread) == (
        *("A00", "random", "fast", "adaptive"),
    )
    assert (run.max_rounds, run.closure, run.publications) == (2000, 20, 0)


def test_adversary_all_selects_every_adversary(tmp_path: Path) -> None:
    runs = asked(tmp_path, 'kind = "converge"\nn = 4\nadversary = "all"').runs
    assert [run.adversary for run in runs] == list(ADVERSARIES)


@pytest.mark.parametrize("mode", [Mode.FIXED, Mode.FAST])
def test_without_each_omits_every_rule_of_the_mode_one_at_a_time(
    tmp_path: Path, mode: Mode
) -> None:
    block = f'kind = "converge"\nn = 4\nmode = "{mode}"\nwithout = ["", "each"]'
    runs = asked(tmp_path, block).runs
    assert [run.without for run in runs] == ["", *(r for r in Rule if r in MODE_RULES[mode])]


def test_equal_runs_of_two_blocks_are_one(tmp_path: Path) -> None:
    first = 'kind = "converge"\nn = [4, 8]\nwithout = "S11,R9"\nloss = 0'
    second = 'kind = "converge"\nn = [8, 16]\nwithout = "R9, S11"\nloss = 0.0'
    runs = asked(tmp_path, first, second).runs
    assert [run.n for run in runs] == [4, 8, 16]
    assert {run.without for run in runs} == {"R9,S11"}


def test_name_of_a_run_contains_all_its_parameters(tmp_path: Path) -> None:
    """Compare names: different runs never have the same name."""
    one = Trial(kind="converge", n=4, adversary="A00")
    others = [
        Trial(kind="steady", n=4, adversary="A00"),
        *(
            Trial(**{"kind": "converge", "n": 4, "adversary": "A00", field: value})
            for field, value in {
                **dict.fromkeys(("adversary", "scheduler", "mode", "without", "spread"), "x"),
                **dict.fromkeys(("n", "publications", "seed", "max_rounds", "closure"), 7),
                **dict.fromkeys(("loss", "duplicate", "churn"), 0.5),
                "rounds": 7,
            }.items()
        ),
    ]
    assert len(others) == len(Trial.__struct_fields__)
    assert len({run.run_id for run in [one, *others]}) == 1 + len(others)


TWO = ('kind = "topology"\nn = 4',)
REFUSED = {
    "kind = 1\nn = 4": "kind: expected one of converge, steady",
    'kind = "diverge"\nn = 4': "kind: expected one of converge, steady",
    'kind = "converge"': "n: expected the numbers of subscribers",
    'kind = "converge"\nn = []': "n: expected at least one value",
    'kind = "converge"\nn = 0': "n: expected whole numbers from 1 to 1000000, got 0",
    'kind = "converge"\nn = [4, true]': "n: expected whole numbers from 1 to 1000000, got True",
    'kind = "converge"\nn = 4\nadversary = "A99"': "adversary: expected one of A00, A01",
    'kind = "converge"\nn = 4\nscheduler = "fifo"': "scheduler: expected one of random",
    'kind = "converge"\nn = 4\nmode = "slow"': "mode: expected one of paper, fixed, fast",
    'kind = "converge"\nn = 4\nwithout = "R99"': "without: expected texts such as 'R9,S11'",
    'kind = "converge"\nn = 4\nwithout = 9': "without: expected texts such as 'R9,S11'",
    'kind = "converge"\nn = 4\nloss = 1': "loss: expected shares from 0 to 1, got 1",
    'kind = "converge"\nn = 4\nloss = "a"': "loss: expected shares from 0 to 1, got 'a'",
    'kind = "converge"\nn = 4\nchurn = nan': "churn: expected shares from 0 to 1, got nan",
    'kind = "converge"\nn = 4\nseeds = 0': "seeds: expected whole numbers from 1 to",
    'kind = "converge"\nn = 4\nseeds = [-1]': "seeds: expected whole numbers from 0 to",
    'kind = "converge"\nn = 4\nseeds = []': "seeds: expected at least one value",
    'kind = "converge"\nn = 4\nmax_rounds = 3000000000': "max_rounds: expected whole numbers",
    'kind = "converge"\nn = 4\nspeed = 9': "speed: the keys of kind converge are n, scheduler",
    'kind = "converge"\nn = 4\nrounds = 9': "rounds: the keys of kind converge are n, scheduler",
    'kind = "topology"\nn = 4\nloss = 0.1': "loss: the keys of kind topology are n, seeds",
    'kind = "spread"\nn = 4\nspread = "gossip"': "spread: expected one of adaptive, tree, flood",
    'kind = "converge"\nn = 4\nmode = "paper"\nwithout = "each"': "without: mode paper has no",
}


@pytest.mark.parametrize("block", REFUSED)
def test_error_names_the_file_the_block_and_the_key(tmp_path: Path, block: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(tmp_path, *TWO, block)
    assert str(caught.value).startswith(f"{tmp_path / 'm.toml'}: experiment 2: {REFUSED[block]}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "title: expected a text"),
        ('title = "t"', "expected at least one block [[experiment]]"),
        ('title = "t"\nexperiment = []', "expected at least one block [[experiment]]"),
        ('title = "t"\nexperiment = [1]', "experiment 1: expected a block"),
        ('title = "t"\nname = "x"', "unknown key 'name'"),
        ("title =", "invalid TOML"),
    ],
)
def test_file_that_is_not_a_matrix_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_matrix(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the matrix .*: No such file"):
        read_matrix(tmp_path / "m.toml")


def test_matrix_with_too_many_runs_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    block = f'kind = "converge"\nn = {list(range(1, 1001))}\nseeds = {matrix_module.RUNS_MAX}'
    with pytest.raises(InputError, match=r"10000000000 runs exceed the limit of 10000000"):
        asked(tmp_path, block)


@pytest.mark.parametrize("name", ["lab-small.toml", "lab-large.toml"])
def test_shipped_matrices_are_valid_and_contain_every_kind(name: str) -> None:
    matrix = read_matrix(SCENARIOS / name)
    assert {run.kind for run in matrix.runs} == set(KINDS)
    healing = [run for run in matrix.runs if run.kind == "converge"]
    assert {run.adversary for run in healing} == set(ADVERSARIES)
    assert {run.mode for run in healing} >= set(Mode) - {Mode.DETERMINISTIC}
    assert {run.without for run in healing} >= set(MODE_RULES[Mode.FAST])
