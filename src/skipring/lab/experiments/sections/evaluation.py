"""Sections about the statements of the paper: verdicts, causes, livelocks, threats to validity."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, Row

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import LIVELOCK
from skipring.lab.experiments.lemmas import SUSPECTED, VARIABLES
from skipring.lab.experiments.measures import HYPOTHESES, MODES, Statement
from skipring.lab.experiments.sections.convergence import missing
from skipring.lab.experiments.verdicts import SEEDS_MIN, Judged, Verdict
from skipring.report.page import Section
from skipring.report.tables import Cell, Cells, Table, Tone, number
from skipring.sim.engine import IN_FLIGHT_PER_NODE_MAX
from skipring.world.adversaries import ADVERSARIES

# --- how to read a verdict --------------------------------------------------------------

_RULES: Final = (
    (
        "A run counts for a statement only if all hypotheses of the statement hold in it. "
        "Runs outside the hypotheses have a table of their own and no verdict."
    ),
    (
        "A run that reaches its limit of rounds is censored. It shows that the property was "
        "not reached in this many rounds, and refutes nothing. A run with more than "
        f"{IN_FLIGHT_PER_NODE_MAX} messages in flight for each subscriber ends there and is "
        'censored, too; the column "message limit" counts these runs.'
    ),
    (
        'A liveness property ("eventually") is refuted by a livelock, by a closed set of states '
        "or by a proof. The lab searches livelocks: a repeated state of the lockstep "
        "computation, which is deterministic and fair. Once the state repeats, it repeats "
        "without end. Closed sets and proofs are in the decision records, not on this page."
    ),
    (
        "The runs decide whether a statement is refuted. Its cause is not computed from them: "
        "the table of statements (lab/experiments/statements.py) assigns it, after the analysis "
        "in the decision record."
    ),
    (
        "A cell is the set of runs that differ in the seed only. A cell with fewer than "
        f"{SEEDS_MIN} seeds supports nothing, so its good runs are not in the sample; a "
        "counterexample or a censored run counts in every cell. Without a larger cell the verdict "
        'is "too few runs".'
    ),
    'A property "once X, then Y" is judged from the first round in which X holds.',
    "A safety property is refuted by one run without it, because that run is finite.",
    (
        '"Constant" means bounded: within the stated limit in every run, or without a model '
        "of growth (log n, √n, n) that is better than every bounded model (a constant, a − "  # noqa: RUF001  (as it is printed)
        "b/n) by 10 in AIC and predicts growth of more than a tenth."
    ),
    (
        "Supported means that no run contradicts. It is no proof; the known result is proved "
        "or refuted by the tests and decision records that docs/paper-map.md names."
    ),
    (
        "Bounds hold with 95 %: shares after Clopper and Pearson, means after Student, "
        "medians by order statistics, survival after Kaplan and Meier with Greenwood's log- "
        "log bounds."
    ),
)


def method() -> tuple[Section, ...]:
    """Return the sections about hypotheses and verdicts."""
    rows = tuple((it.letter, it.words, it.condition) for it in HYPOTHESES)
    return (
        Section(
            "hypotheses",
            "Hypotheses",
            "Each statement lists its hypotheses as letters; the condition selects the runs.",
            table=Table(("letter", "hypothesis", "condition on a run"), rows),
            fold_table=False,
        ),
        Section("rules", "Rules of the verdicts", "The verdicts follow these rules.", notes=_RULES),
    )


# --- statements ------------------------------------------------------------------------

_CENSORED: Final = ("limit", "censored", "message limit")
_HEADINGS: Final = ("hypotheses", "sample", *_CENSORED, "verdict", "reason")
_FIGURES: Final = frozenset(_CENSORED)


def statements(judged: Sequence[Judged]) -> tuple[Section, ...]:
    """Return the tables of statements, variants, causes and runs outside the hypotheses."""
    papers = [one for one in judged if not one.statement.is_ours]
    return (
        _pseudocode(papers),
        _with_rules(papers),
        _of_the_graph(papers),
        causes(judged),
        _variants([one for one in judged if one.statement.is_ours]),
        _outside(judged),
    )


def _has_modes(statement: Statement) -> bool:
    return Mode.PAPER in statement.modes


def _pseudocode(judged: Sequence[Judged]) -> Section:
    rows = [
        (*_named(one), *_verdict_cells(one.statement, one.verdicts[Mode.PAPER]))
        for one in judged
        if _has_modes(one.statement)
    ]
    return Section(
        "statements",
        "Statements about the pseudocode",
        "The theorems, lemmas, corollaries and claims of the paper, judged by runs of the "
        "pseudocode as it is printed (mode paper).",
        table=Table(("where", "statement", *_HEADINGS), tuple(rows), _FIGURES),
        fold_table=False,
    )


def _with_rules(judged: Sequence[Judged]) -> Section:
    rows = [
        (*_titled(one), mode, *_verdict_cells(one.statement, one.verdicts[mode]))
        for one in judged
        for mode in (Mode.FIXED, Mode.FAST)
        if _has_modes(one.statement) and mode in one.verdicts
    ]
    return Section(
        "statements-rules",
        "The same statements with the rules of this project",
        "Mode fixed has the rules that convergence needs, mode fast has all rules.",
        table=Table(("where", "statement", "mode", *_HEADINGS), tuple(rows), _FIGURES),
        fold_table=False,
    )


def _of_the_graph(judged: Sequence[Judged]) -> Section:
    rows = [
        (*_named(one), *_verdict_cells(one.statement, one.verdicts[Mode.FAST]))
        for one in judged
        if not _has_modes(one.statement)
    ]
    return Section(
        "statements-overlay",
        "Statements about the graph",
        "Properties of SR(n) itself, without any protocol, compared with Chord and a skip graph of "
        "the same size.",
        table=Table(("where", "statement", *_HEADINGS), tuple(rows), _FIGURES),
        fold_table=False,
    )


def causes(judged: Sequence[Judged]) -> Section:
    """Return the table of the causes of refutations; one cause is one contradiction."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in judged:
        statement = one.statement
        modes = [mode for mode in MODES if _is_refuted(one, mode)]
        if modes and statement.cause is not None and not statement.is_ours:
            key = statement.cause.decision, statement.cause.text
            which = "" if not _has_modes(statement) else f" ({', '.join(modes)})"
            found.setdefault(key, []).append(f"{statement.title}{which}")
    rows = tuple(
        (text, decision, "; ".join(titles)) for (decision, text), titles in sorted(found.items())
    )
    return Section(
        "causes",
        "Contradictions by cause",
        f"The refuted statements have {len(rows)} causes.",
        table=Table(("cause", "decision", "refuted statements (modes)"), rows),
        fold_table=False,
    )


def contradictions(judged: Sequence[Judged], mode: Mode) -> tuple[int, int]:
    """Return how many statements of the paper a mode contradicts, and their number of causes."""
    refuted = [one.statement for one in judged if _is_refuted(one, mode)]
    papers = [statement for statement in refuted if not statement.is_ours]
    return len(papers), len({statement.cause for statement in papers})


def _is_refuted(one: Judged, mode: Mode) -> bool:
    return mode in one.verdicts and one.verdicts[mode].tone is Tone.BAD


def _variants(judged: Sequence[Judged]) -> Section:
    rows = [
        (
            *_named(one),
            mode if _has_modes(one.statement) else "–",  # noqa: RUF001  (as it is printed)
            *_verdict_cells(one.statement, verdict),
        )
        for one in judged
        for mode, verdict in one.verdicts.items()
    ]
    return Section(
        "variants",
        "Variants that the paper does not state",
        "Statements of this project. They do not count as statements of the paper.",
        table=Table(("where", "statement", "mode", *_HEADINGS), tuple(rows), _FIGURES),
        fold_table=False,
    )


def _outside(judged: Sequence[Judged]) -> Section:
    rows = [
        (
            *(*_titled(one), mode, found.sample, found.limit, f"{found.censored:,}"),
            *(f"{found.at_message_limit:,}", found.reason),
        )
        for one in judged
        for mode, found in one.outside.items()
        if not one.statement.is_ours
    ]
    headings = ("where", "statement", "mode", "sample", *_CENSORED, "result")
    return Section(
        "outside",
        "Runs outside the hypotheses",
        "These runs break at least one hypothesis of the statement: references to crashed nodes, "
        "subscribers without connection, members that leave, loss, churn, or a missing rule. They "
        "decide nothing about the paper.",
        table=Table(headings, tuple(rows), _FIGURES),
    )


def _named(one: Judged) -> Cells:
    it = one.statement
    return it.section, f"{it.title}. {it.claim} Known: {it.known}{_records(it)}."


def _records(it: Statement) -> str:
    return f" (decision {', '.join(it.decisions)})" if it.decisions else ""


def _titled(one: Judged) -> Cells:
    return one.statement.section, one.statement.title


def _verdict_cells(statement: Statement, verdict: Verdict) -> Cells:
    letters = " ".join(it.letter for it in statement.hypotheses) or "none"
    return (
        letters,
        verdict.sample,
        verdict.limit,
        f"{verdict.censored:,}",
        f"{verdict.at_message_limit:,}",
        Cell(verdict.word, verdict.tone),
        verdict.reason,
    )


# --- livelocks -------------------------------------------------------------------------

_LOCKSTEP_NOTE: Final = (
    "In a round of the lockstep computation all messages in the channels are delivered in a fixed "
    "order, then every process runs Timeout once. The state consists of the paper's variables and "
    "channels; all other variables of the machines are new in each round. A coin that shows heads "
    "with probability 1/m shows it in every m-th round, and the cycle is a multiple of the period "
    "of all coins, so each coin has its probability as its frequency. References to crashed nodes "
    "leave the database at the start of each round, as with a perfect failure detector."
)


def livelocks(runs: DataFrame) -> tuple[Section, ...]:
    """Return the section about the livelocks of the pseudocode."""
    title = "Livelocks of the pseudocode"
    found = runs.filter(LIVELOCK).orderBy("n", "adversary", "seed").collect()
    if not found:
        return (missing("livelocks", title, "runs of kind livelock"),)
    cycles = [row for row in found if row["cycle_length"] is not None]
    rows = tuple(
        (
            row["adversary"],
            *(f"{row[name]:,}" for name in ("n", "seed")),
            *(number(row["measures"][name]) for name in ("cycle_start", "cycle_length")),
            number(row["measures"]["coin_period"]),
            _layers(row["measures"]),
            _changing(row["measures"]) or "none",
            *("yes" if row["measures"][f"healed_by_{name}"] else "no" for name in SUSPECTED),
            _broken(row) or "none",
        )
        for row in cycles
    )
    healed = sum(row["converged"] for row in found)
    headings = (
        *("adversary", "n", "seed", "first round", "length", "coins", "layers", "changes"),
        *(f"heals with {name}" for name in SUSPECTED),
    )
    return (
        Section(
            "livelocks",
            title,
            f"Of {len(found):,} lockstep computations {healed:,} become legitimate, "
            f"{len(cycles):,} repeat a state, and {len(found) - healed - len(cycles):,} do neither "
            f"within their limit. {_causes_of(cycles)}",
            table=Table((*headings, "broken hypotheses"), rows, frozenset(headings[1:6])),
            notes=(_LOCKSTEP_NOTE, _COLUMNS_NOTE),
            fold_table=False,
        ),
    )


_COLUMNS_NOTE: Final = (
    "Coins: period of all coins in rounds. Layers: number of layers that hold in the states of "
    "the cycle (5 is explicitly legitimate). Changes: variables that change within the cycle, and "
    "at how many processes. Heals with R1, with B13, with both: whether the same computation of "
    "the pseudocode with these rules alone becomes legitimate (decisions 0003 and 0012)."
)


def _causes_of(cycles: Sequence[Row]) -> str:
    """Return how many livelocks the suspected rules end, within the hypotheses and outside."""
    within = [row["measures"] for row in cycles if not _broken(row)]
    crashed = [row["measures"] for row in cycles if row["start_crashed"]]
    return (
        f"Of the {len(within)} livelocks within the hypotheses of the theorem of network "
        f"convergence, the same start heals in {_healed(within, 'R1')} with rule R1 alone and in "
        f"{_healed(within, 'B13')} with rule B13 alone. Of the {len(crashed)} livelocks with "
        f"references to crashed nodes, it heals in {_healed(crashed, 'R1')} with R1, in "
        f"{_healed(crashed, 'B13')} with B13, and in {_healed(crashed, 'both')} with both."
    )


def _healed(found: Sequence[Mapping[str, float]], name: str) -> int:
    return sum(bool(measures[f"healed_by_{name}"]) for measures in found)


def _layers(measures: dict[str, float]) -> str:
    least, most = int(measures["layers_least"]), int(measures["layers_most"])
    return str(least) if least == most else f"{least} to {most}"


def _changing(measures: dict[str, float]) -> str:
    counts = {name: int(measures[f"changing_{name}"]) for name in VARIABLES}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _broken(row: Row) -> str:
    facts = {"E": row["start_crashed"], "G": not row["start_connected"], "S": row["start_leavers"]}
    return " ".join(letter for letter, is_broken in facts.items() if is_broken)


# --- worst cases -----------------------------------------------------------------------

_FOUND: Final = re.compile(
    r"^# Worst of (\d+) runs of .*: (\d+) rounds\.\n"
    r"# As many runs in random order: (\d+) at worst, ([\d.]+) in the median\.$",
    re.MULTILINE,
)
_SEARCH_NOTE: Final = (
    "Each row is a file in scenarios/ with start and schedule, which skipring simulate repeats. "
    "The search samples starts, builds greedy schedules, mutates the worst run and restarts; the "
    "comparison has as many runs in random order (docs/lab.md)."
)


def worst_cases(searched: Mapping[str, str]) -> Section:
    """Return the table of the worst starts and schedules that a search has found."""
    rows = []
    for name, text in searched.items():
        values, found = tomllib.loads(text), _FOUND.search(text)
        if found is not None:
            runs, worst, random_worst, random_median = found.groups()
            start = f"{values['adversary']} {ADVERSARIES[values['adversary']].title}"
            parameters = (name, values["mode"], f"{values['n']}", start)
            rows.append((*parameters, runs, worst, random_worst, random_median))
    headings = ("scenario", "mode", "n", "start", "runs", "worst", "random worst", "random median")
    return Section(
        "worst-cases",
        "Worst starts and schedules",
        "Rounds of the worst run that a search has found, beside runs in random order.",
        table=Table(headings, tuple(rows), frozenset(("n", *headings[4:]))),
        notes=(_SEARCH_NOTE,),
        fold_table=False,
    )


# --- threats to validity ---------------------------------------------------------------

_THREATS: Final = (
    (
        f"Starts. The adversaries are {len(ADVERSARIES)} hand-written constructions, not a "
        "sample of all states. A share of runs is a share over these starts and seeds, not a "
        "probability over states. The exhaustive check for two subscribers "
        "(docs/simulation.md) covers all states of that size."
    ),
    (
        "Schedules. Random, synchronous, delaying and clogging schedulers are four fair "
        "schedules; the paper allows all. Worse schedules can exist; a livelock refutes for "
        "one schedule, and support holds for these schedules only."
    ),
    (
        "Sizes. Livelocks are searched at n = 8, because the period of the coins grows with the "
        "length of the labels (144 rounds at n = 8, 57,600 at n = 32). Single runs of 100,000 and "
        "1,000,000 subscribers are in docs/simulation.md."
    ),
    (
        "Models. Four sizes or more separate log n from n, but hardly from √n. The models "
        "assume residuals of equal variance, and the variance grows with n. A model holds for "
        "the measured sizes only."
    ),
    (
        "Many comparisons. The page has more than a hundred intervals of 95 %, so some miss "
        "the true value."
    ),
    (
        "The pseudocode. Mode paper is one reading of Algorithms 1 to 5. docs/paper-map.md "
        "lists the points in which the text leaves a choice, and the decision about each."
    ),
    (
        "The implementation. Simulator and live nodes run the same machines, but the "
        "simulator has no clocks, disks or sockets. A round is a timeout interval, and says "
        "nothing about seconds."
    ),
    (
        "Hypotheses. Weak connectivity is checked on stored references only, which is "
        "stricter than the paper, where references in channels count too."
    ),
)


def threats() -> tuple[Section, ...]:
    """Return the section about threats to validity."""
    return (
        Section(
            "threats",
            "Limits of this evaluation",
            "A reader should know these limits before using a verdict.",
            notes=_THREATS,
        ),
    )
