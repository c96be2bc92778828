"""Matrix of an experiment: the runs that a TOML file describes.

A file has a title and blocks ``[[experiment]]``. In a block every key but ``kind`` has one value
or a list; the matrix contains the product of all lists. Equal runs of several blocks count once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from skipring.core.config import MODE_RULES, Mode, Rule, Spread
from skipring.errors import InputError
from skipring.sim.scenario import N_MAX, PUBLICATIONS_MAX
from skipring.sim.schedulers import SCHEDULERS
from skipring.world.adversaries import ADVERSARIES

RUNS_MAX: Final = 10**7  # Limit: the run names must fit into the driver's memory.
INT_MAX: Final = 2**31 - 1  # largest value of a column of the tables
ALL: Final = "all"
EACH: Final = "each"

# Keys of a block by its kind, besides n and seeds.
_WEATHER: Final = ("scheduler", "mode", "without", "loss", "duplicate")
_OPERATION: Final = (*_WEATHER, "max_rounds", "closure")
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "converge": (*_OPERATION, "adversary", "churn", "spread", "publications"),
    "steady": (*_WEATHER, "rounds"),
    "subscribe": _OPERATION,
    "unsubscribe": _OPERATION,
    "crash": _OPERATION,
    "spread": (*_OPERATION, "spread", "publications"),
    "livelock": ("adversary", "max_rounds"),
    "potential": ("scheduler", "mode", "without", "publications", "max_rounds"),
    "session": ("publications",),
    "topology": (),
}
# Kinds that run the pseudocode, whatever the default mode.
OF_THE_PAPER: Final = ("livelock", "session")


class Trial(Struct, frozen=True, kw_only=True):
    """Parameters of one run; those that its kind does not use have their defaults."""

    kind: str
    n: int
    adversary: str = ""
    scheduler: str = "random"
    mode: str = "fast"
    without: str = ""
    loss: float = 0.0
    duplicate: float = 0.0
    churn: float = 0.0
    spread: str = "adaptive"
    publications: int = 0
    seed: int = 0
    max_rounds: int = 0
    closure: int = 0
    rounds: int = 0

    @property
    def run_id(self) -> str:
        """Return the name of the run: its kind and all its values; equal runs have equal names."""
        values = asdict(self)
        kind = values.pop("kind")
        return " ".join([kind, *(f"{key}={value}" for key, value in values.items())])


class Matrix(Struct, frozen=True):
    """Runs of a file in its order, each once."""

    title: str
    text: str
    runs: tuple[Trial, ...]
    searched: tuple[tuple[str, str], ...] = ()  # worst cases beside the file: names and texts


SEARCHED: Final = "worst-*.toml"  # scenarios that `skipring lab search` has written


def read_matrix(path: Path) -> Matrix:
    """Read a matrix; an error names the file, the block and the key."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        beside = sorted(path.parent.glob(SEARCHED))
        searched = tuple((each.stem, each.read_text(encoding="utf-8")) for each in beside)
    except OSError as error:
        raise InputError(f"cannot read the matrix {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError, too
        raise InputError(f"{path}: invalid TOML: {error}") from None
    try:
        return replace(_matrix(values, text), searched=searched)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _matrix(values: Mapping[str, Any], text: str) -> Matrix:
    title, blocks = values.get("title"), values.get("experiment")
    if unknown := sorted(set(values) - {"title", "experiment"}):
        raise InputError(f"unknown key {unknown[0]!r}; the keys are title and [[experiment]]")
    if not isinstance(title, str):
        raise InputError("title: expected a text")
    if not isinstance(blocks, list) or not blocks:
        raise InputError("expected at least one block [[experiment]]")
    # Before the product is computed: it may not fit into memory.
    lists = [_named(number, block, _block_lists) for number, block in enumerate(blocks, 1)]
    if (size := sum(prod(map(len, found.values())) for found in lists)) > RUNS_MAX:
        raise InputError(f"{size} runs exceed the limit of {RUNS_MAX}")
    runs = dict.fromkeys(
        run for number, found in enumerate(lists, 1) for run in _named(number, found, _block_runs)
    )
    return Matrix(title, text, tuple(runs))


def _named(number: int, block: Any, read: Callable[[Any], Any]) -> Any:  # noqa: ANN401  (as TOML has it)
    """Read a block; an error names its number."""
    try:
        return read(block)
    except InputError as error:
        raise InputError(f"experiment {number}: {error}") from None


def _block_lists(block: object) -> dict[str, Sequence[Any]]:
    """Return the checked values of every key of a block."""
    if not isinstance(block, dict):
        raise InputError("expected a block [[experiment]]")
    kind = block.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r:.40}")
    known = ("n", *KINDS[kind], "seeds")
    for key in block:
        if key not in ("kind", *known):
            raise InputError(f"{key[:40]}: the keys of kind {kind} are {', '.join(known)}")
    if "n" not in block:
        raise InputError("n: expected the numbers of subscribers")
    given = {**_defaults(kind), **block}
    del given["kind"]
    fixed = {"mode": [str(Mode.PAPER)]} if kind in OF_THE_PAPER else {}
    return {"kind": [kind], **fixed, **{key: _values(key, value) for key, value in given.items()}}


def _defaults(kind: str) -> dict[str, Any]:
    """Return the values of keys that a block omits."""
    chosen = {
        "adversary": "A00",
        "max_rounds": 2000,
        "closure": 20,
        "rounds": 100,
        "publications": _PUBLICATIONS.get(kind, 0),
        "seeds": 1,
    }
    return {key: value for key, value in chosen.items() if key in (*KINDS[kind], "seeds")}


_PUBLICATIONS: Final = {"spread": 1, "potential": 20, "session": 5}


def _values(key: str, given: object) -> Sequence[Any]:
    if key == "seeds" and not isinstance(given, list):
        return range(_whole(key, given, 1, INT_MAX))  # not a list: it may not fit into memory
    if key == "adversary" and given == ALL:
        given = list(ADVERSARIES)
    items = given if isinstance(given, list) else [given]
    if not items:
        raise InputError(f"{key}: expected at least one value")
    return list(dict.fromkeys(_CHECKS[key](key, item) for item in items))


def _block_runs(lists: Mapping[str, Sequence[Any]]) -> Iterator[Trial]:
    """Return the product of a block's lists."""
    names = ["seed" if key == "seeds" else key for key in lists]
    runs = [
        Trial(**{**chosen, "without": without})
        for values in product(*lists.values())
        for chosen in [dict(zip(names, values, strict=True))]
        for without in _rule_sets(chosen)
    ]
    if not runs:
        raise InputError("without: mode paper has no rules to leave out")
    return iter(runs)


def _rule_sets(chosen: Mapping[str, Any]) -> list[str]:
    """Return the rules to omit: the given ones, or every rule of the mode, one at a time."""
    without: str = chosen.get("without", "")
    if without != EACH:
        return [without]
    rules = MODE_RULES[Mode(chosen.get("mode", Mode.FAST))]
    return [str(rule) for rule in Rule if rule in rules]


# --- single values ---------------------------------------------------------------------


def _whole(key: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{key}: expected whole numbers from {least} to {most}, got {value!r:.40}")
    return value


def _share(key: str, value: object, *, below: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value < below):  # type: ignore[operator]  # mypy forgets is_number
        raise InputError(f"{key}: expected shares from 0 to 1, got {value!r:.40}")
    return float(value)  # type: ignore[arg-type]  # as above


def _choice(key: str, value: object, choices: Mapping[str, object] | type[Mode | Spread]) -> str:
    names = list(choices)
    if value not in names:
        raise InputError(f"{key}: expected one of {', '.join(names)}, got {value!r:.40}")
    return str(value)


def _rules(key: str, value: object) -> str:
    """Return rules separated by commas, in the order of ``Rule``."""
    if value == EACH:
        return EACH
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else [""]
    named = [word for word in words if word]
    if not isinstance(value, str) or (unknown := [word for word in named if word not in set(Rule)]):
        got = value if not isinstance(value, str) else unknown[0]
        raise InputError(
            f"{key}: expected texts such as 'R9,S11' of {', '.join(Rule)}, or {EACH!r}, "
            f"got {got!r:.40}"
        )
    return ",".join(rule for rule in Rule if rule in named)


_CHECKS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "n": lambda key, value: _whole(key, value, 1, N_MAX),
    "adversary": lambda key, value: _choice(key, value, ADVERSARIES),
    "scheduler": lambda key, value: _choice(key, value, SCHEDULERS),
    "mode": lambda key, value: _choice(key, value, Mode),
    "without": _rules,
    "loss": lambda key, value: _share(key, value, below=1),
    "duplicate": lambda key, value: _share(key, value, below=1),
    "churn": lambda key, value: _share(key, value, below=1),
    "spread": lambda key, value: _choice(key, value, Spread),
    "publications": lambda key, value: _whole(key, value, 0, PUBLICATIONS_MAX),
    "seeds": lambda key, value: _whole(key, value, 0, INT_MAX),
    "max_rounds": lambda key, value: _whole(key, value, 0, INT_MAX),
    "closure": lambda key, value: _whole(key, value, 0, INT_MAX),
    "rounds": lambda key, value: _whole(key, value, 1, INT_MAX),
}
