"""Measures of statements: hypotheses and properties as conditions on runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import HEALING, LIVELOCK

MODES: Final = (Mode.PAPER, Mode.FIXED, Mode.FAST)


class Hypothesis(Struct, frozen=True):
    """Hypothesis of a statement: letter of the page, words, and condition on a run."""

    letter: str
    words: str
    condition: str


RELIABLE: Final = Hypothesis(
    "C", "channels neither lose nor duplicate messages (section 1.1)", "loss = 0 AND duplicate = 0"
)
STATIC: Final = Hypothesis(
    "S",
    "no member joins, leaves or crashes during the run, except by the operation measured",
    "churn = 0 AND NOT start_leavers",
)
WHOLE: Final = Hypothesis("W", "no rule of the mode is switched off", "without = ''")
EXISTING: Final = Hypothesis(
    "E", "all references are to existing nodes (section 1.1)", "NOT start_crashed"
)
CONNECTED: Final = Hypothesis(
    "G", "the subscribers are weakly connected by their stored references", "start_connected"
)
RIGHT_TRIES: Final = Hypothesis(
    "T", "stored ids, hashes and bodies of publications match", "NOT start_tries_wrong"
)
RING_ONLY: Final = Hypothesis(
    "R",
    "publications move over ring edges only: no flooding, no comparison over shortcuts (R16)",
    "mode <> 'fast'",
)
DETECTED: Final = Hypothesis(
    "D",
    "the failure detector suspects no live node (section 1.1); delay and swizzle hold messages or "
    "nodes for longer than it waits",
    "scheduler NOT IN ('delay', 'swizzle') OR mode = 'paper'",
)
IN_STEP: Final = Hypothesis(
    "O", "no message overtakes an earlier one (scheduler sync)", "scheduler = 'sync'"
)

HYPOTHESES: Final = (
    *(RELIABLE, STATIC, WHOLE, EXISTING, CONNECTED, DETECTED, RIGHT_TRIES, RING_ONLY, IN_STEP),
)
MODEL: Final = (RELIABLE, STATIC, WHOLE)


def all_of(hypotheses: Iterable[Hypothesis]) -> str:
    """Return the condition that all hypotheses hold."""
    return " AND ".join(["true", *(f"({it.condition})" for it in hypotheses)])


class Always(Struct, frozen=True):
    """Measure of a safety property: a run ``among`` these without ``shows`` is a counterexample."""

    among: str
    shows: str


class Eventually(Struct, frozen=True):
    """Measure of a liveness property: "once X, then Y", from the first round of X.

    ``began`` is the round since which X has held once, ``reached`` the round since which Y holds to
    the end; null if there is none. A run that does not reach Y within its limit is censored. Only a
    livelock refutes the property: X held in it, and ``never`` holds for its cycle.
    """

    began: str
    reached: str
    never: str
    among: str = f"({HEALING} OR {LIVELOCK})"


class UpperBound(Struct, frozen=True):
    """Measure: the mean of a value stays below a limit at every n."""

    among: str
    value: str
    limit: float


class Bounded(Struct, frozen=True):
    """Measure of a constant: no growth with n, and in no run more than ``limit`` if it is known."""

    among: str
    value: str
    limit: float | None = None


class Unmeasured(Struct, frozen=True):
    """Measure that no run can provide; docs/paper-map.md names the tests in ``file`` instead."""

    file: str


Measure: TypeAlias = Always | Eventually | UpperBound | Bounded | Unmeasured


class RefutationCause(Struct, frozen=True):
    """Reason why statements are false, and the record of the decision about it."""

    text: str
    decision: str


DISPLACED: Final = RefutationCause(
    "a displaced shortcut is stored in the ring under the label of its slot, so wrong labels do "
    "not die out",
    "0003",
)
MERGED: Final = RefutationCause(
    "configurations are merged with the stored neighbours, so a dead neighbour stays", "0012"
)
MISCOUNTED: Final = RefutationCause(
    "the proof counts one label of length 1, but there are two", "0012 (k+1)"
)
FORWARDED: Final = RefutationCause("references are passed on hop by hop", "0006")
STALE: Final = RefutationCause(
    "a message sent before the state became legitimate arrives later", "0016"
)
SIBLING: Final = RefutationCause(
    "a Patricia trie skips prefixes, so the requested prefix is not the label of a node", "0022"
)


class Statement(Struct, frozen=True):
    """Statement, its hypotheses, its known result and its measure."""

    section: str
    title: str
    claim: str
    known: str  # result in docs/paper-map.md
    measure: Measure
    hypotheses: tuple[Hypothesis, ...] = MODEL
    cause: RefutationCause | None = None  # of a refutation
    decisions: tuple[str, ...] = ()  # numbers of decision records
    modes: tuple[Mode, ...] = MODES
    is_ours: bool = False  # a variant that the paper does not state


def overlay(name: str) -> str:
    """Return the value of a measure of overlays."""
    return f"measures['{name}']"


def is_least(key: str) -> str:
    """Return the condition that the skip ring has a smaller value than both others."""
    own = overlay(f"skip_ring.{key}")
    return f"{own} < {overlay(f'chord.{key}')} AND {own} < {overlay(f'skip_graph.{key}')}"
