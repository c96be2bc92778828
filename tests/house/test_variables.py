"""Variables of the machines: each is in the world file, derived and audited, or constant.

The table states the kind of each attribute, for every class with state in every module of the
core. A new attribute, class or module fails the test until it has a row. A variable in the file
survives a round trip through ``state`` and ``load``; a derived one is derived again within 16 ticks
after any corruption, the index of retained rows within 80, as the twin test here or the named test
shows. Readers (``order``, ``api``) have no rows: no member depends on them, and each subscription
makes its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from inspect import getsource, isclass
from pathlib import Path
from pkgutil import walk_packages
from textwrap import dedent
from types import MappingProxyType
from typing import Final

import pytest
from msgspec import Struct

from skipring import core
from skipring.core.broadcast import _Route as Route
from skipring.core.labels import Label
from skipring.core.peers import Peer
from tests.support.round_trip import carries, heals

PURE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batches": "frozen values and functions",
        "config": "frozen values, given when a machine is made",
        "effects": "frozen values; an Outbox exists during one event",
        "events": "frozen values",
        "labels": "frozen values",
        "limits": "functions",
        "log_pages": "functions",
        "messages": "frozen values",
        "peers": "frozen values",
        "prefix": "frozen values and functions",
        "reconcile": "functions; a Reconciler exists during one message",
        "state": "frozen values",
        "summaries": "frozen values and functions",
        "topology": "frozen values and functions",
    }
)
# Mutable classes of the pure modules, and why no variable of a machine is of such a class.
TRANSIENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Outbox": "made for one event, and returned as its effects",
        "Reconciler": "made for one message, and sent in its effects",
        "_Fields": "decoded for one batch of a page, and dropped",
    }
)
TESTS: Final = Path(__file__).resolve().parents[1]

ONE_HOLDER = "test_one_of_two_live_processes_holds_the_name_after_any_corruption"
WRONG_TERMS = "test_wrong_derived_terms_are_corrected_within_16_ticks"
WRONG_DROPS = "test_corrupted_batches_and_counters_are_forgotten_with_the_last_read"
LIVE_ROWS = "test_live_rows_that_memory_calls_superseded_are_not_dropped"
WRONG_ROWS = "test_wrong_index_of_rows_is_derived_again"
TWIN = "equals that of a twin, a machine without corruption, within 16 ticks"
READING = "test_T12_any_progress_of_reading_the_log_leads_to_a_full_index"
FILE, DERIVED, FIXED, PART = "file", "derived", "never changes", "part"

# Class and attribute -> kind, and the field of the file, TWIN or the test of the audit, or the
# reason.
Row = tuple[str, str]
TABLE: Final[Mapping[str, Mapping[str, Row]]] = MappingProxyType(
    {
        "Supervisor": {
            "_answered": (FILE, "SupervisorMemory.answered"),
            "_calm_ticks": (FILE, "SupervisorMemory.calm_ticks"),
            "_config": (FIXED, "given when the machine is made"),
            "_detector": (PART, "FailureDetector"),
            "_own_budget": (PART, "DetectorBudget"),
            "_mismatches": (FILE, "SupervisorMemory.mismatches"),
            "_queue": (FILE, "SupervisorState.queue"),
            "_refresh_ticks": (FILE, "SupervisorMemory.refresh_ticks"),
            "_suspects": (FILE, "SupervisorMemory.suspects"),
            "_ticks": (FILE, "SupervisorMemory.ticks"),
            "_answer_ticks": (FILE, "SupervisorMemory.told"),
            "roster": (PART, "Roster"),
        },
        "FailureDetector": {
            "_budget": (PART, "DetectorBudget"),
            "_cases": (FILE, "DetectorState.cases"),
            "_unanswered": (FILE, "DetectorState.unanswered"),
        },
        "DetectorBudget": {
            "pings": (FILE, "DetectorState.pings"),
            "reports": (FILE, "DetectorState.reports"),
        },
        "_Case": {
            "accusers": (FILE, "CaseState.accusers"),
            "newest": (FILE, "CaseState.newest"),
            "pinged": (FILE, "CaseState.pinged"),
            "since": (FILE, "CaseState.since"),
        },
        "Roster": {
            "_audited": (FILE, "SupervisorMemory.audited"),
            "_audited_sum": (FILE, "SupervisorMemory.audited_sum"),
            "_digest": (FILE, "SupervisorMemory.digest"),
            "_index": (FILE, "SupervisorMemory.index"),
            "_loaded": (FILE, "SupervisorState.database"),
            "_nodes": (FILE, "SupervisorState.database"),
            "cursor": (FILE, "SupervisorState.next"),
        },
        "Subscriber": {
            "_audit_ticks": (FILE, "SubscriberMemory.audit_ticks"),
            "_broadcast": (PART, "Broadcast"),
            "replica": (PART, "Replica"),
            "replication": (PART, "Replication"),
            "_config": (FIXED, "given when the machine is made"),
            "_digest": (PART, "RingDigest"),
            "_ring": (PART, "Ring"),
            "_rng": (FIXED, "chance is no state: any outcome is possible at any time"),
            "_shortcuts": (PART, "Shortcuts"),
            "_liveness": (PART, "NeighbourLiveness"),
            "ring_messages": (PART, "RingMessages"),
            "_unheard": (FILE, "SubscriberMemory.unheard"),
            "node": (FIXED, "the node's name"),
            "wants": (FILE, "SubscriberState.member"),
        },
        "Ring": {
            "me": (FILE, "SubscriberState.label"),
            "neighbours": (FILE, "SubscriberState.left"),
            "ask_ticks": (FILE, "SubscriberMemory.ask_ticks"),
            "node": (FIXED, "the node's name"),
            "rules": (FIXED, "given when the machine is made"),
            "wrap": (FILE, "SubscriberState.ring"),
        },
        "RingMessages": {
            "_digest": (PART, "RingDigest"),
            "known": (DERIVED, "test_wrong_known_messages_are_corrected_within_16_ticks"),
            "known_at": (DERIVED, "test_wrong_known_messages_are_corrected_within_16_ticks"),
            "known_configuration": (
                DERIVED,
                "test_wrong_known_configuration_is_corrected_within_16_ticks",
            ),
            "known_tick": (DERIVED, "test_wrong_known_tick_is_corrected_within_16_ticks"),
            "is_place_sure": (DERIVED, "test_wrong_known_tick_is_corrected_within_16_ticks"),
            "_liveness": (PART, "NeighbourLiveness"),
            "_ring": (PART, "Ring"),
            "_shortcuts": (PART, "Shortcuts"),
        },
        "Shortcuts": {
            "_chains": (FILE, "SubscriberMemory.chains"),
            "_ring": (PART, "Ring"),
            "slots": (FILE, "SubscriberState.shortcuts"),
        },
        "NeighbourLiveness": {
            "_unheard": (FIXED, "that of the subscriber, given when the machine is made"),
            "_config": (FIXED, "given when the machine is made"),
            "_watches": (FILE, "SubscriberState.silence"),
        },
        "Watch": {
            "node": (FIXED, "the key in SubscriberState.silence"),
            "pending": (FILE, "LivenessState.pending"),
            "threshold": (FILE, "LivenessState.threshold"),
            "ticks": (FILE, "LivenessState.ticks"),
        },
        "RingDigest": {
            "_config": (FIXED, "given when the machine is made"),
            "_own": (DERIVED, TWIN),
            "_weight": (FILE, "SubscriberMemory.weight"),
            "heard": (FILE, "SubscriberState.digests"),
        },
        "Replication": {
            "_config": (FIXED, "given when the machine is made"),
            "_handovers": (PART, "Handovers"),
            "_repair": (PART, "AntiEntropy"),
            "_ring": (PART, "Ring"),
            "_completeness": (PART, "Completeness"),
            "_drain": (PART, "Drain"),
            "_transfers": (PART, "TransferTracker"),
            "_backfill": (PART, "BackfillClient"),
            "_broadcast": (PART, "Broadcast"),
            "_replica": (PART, "Replica"),
            "_sync": (PART, "SyncConfirmations"),
        },
        "Broadcast": {
            "_arrived": (DERIVED, "test_wrong_arrivals_last_until_the_next_flush"),
            "_lazy_push": (PART, "LazyPush"),
            "_calm_ticks": (FILE, "BroadcastState.calm_ticks"),
            "_config": (FIXED, "given when the machine is made"),
            "_edges": (FILE, "BroadcastState.tree_edges"),
            "_has_news": (FILE, "BroadcastState.has_news"),
            "_replica": (PART, "Replica"),
            "_is_view_sure": (DERIVED, TWIN),
            "_levels": (FILE, "BroadcastState.levels"),
            "news_ticks": (FILE, "BroadcastState.news_ticks"),
            "_ring": (PART, "Ring"),
            "_routes": (DERIVED, TWIN),
            "_shortcuts": (PART, "Shortcuts"),
            "_view": (DERIVED, TWIN),
        },
        "LazyPush": {
            "_config": (FIXED, "given when the machine is made"),
            "_replica": (PART, "Replica"),
            "_missing": (FILE, "LazyPushState.missing"),
            "_news": (FILE, "LazyPushState.news"),
            "_node": (FIXED, "the node's name"),
            "_recent": (FILE, "LazyPushState.recent"),
            "_recent_before": (FILE, "LazyPushState.told"),
        },
        "AntiEntropy": {
            "_claims": (FILE, "RepairState.claims"),
            "_config": (FIXED, "given when the machine is made"),
            "_transfers": (PART, "TransferTracker"),
            "terms": (PART, "TermsExchange"),
            "_replica": (PART, "Replica"),
            "_node": (FIXED, "the node's name"),
            "_open_ticks": (FILE, "RepairState.open_ticks"),
            "_patience": (FILE, "RepairState.patience"),
            "_period": (FILE, "RepairState.period"),
            "_quiet_ticks": (FILE, "RepairState.quiet_ticks"),
            "_scrubber": (PART, "Scrubber"),
            "_session": (FILE, "RepairState.session"),
        },
        "Scrubber": {
            "_end": (FILE, "ScrubState.end"),
            "_found": (FILE, "ScrubState.found"),
            "_has_doubts": (FILE, "ScrubState.has_doubts"),
            "_replica": (PART, "Replica"),
            "_ids": (FILE, "ScrubState.ids"),
            "_offset": (FILE, "ScrubState.offset"),
        },
        "TermsExchange": {
            "_equal": (FILE, "ExchangeState.equal"),
            "_has_counted": (DERIVED, WRONG_TERMS),
            "_known": (DERIVED, WRONG_TERMS),
            "_levels": (FILE, "ExchangeState.levels"),
            "_met": (FILE, "ExchangeState.met"),
            "_node": (FIXED, "the node's name"),
            "_replica": (PART, "Replica"),
            "_sent": (DERIVED, WRONG_TERMS),
            "_ticks": (FILE, "ExchangeState.ticks"),
        },
        "Retention": {
            "_config": (FIXED, "given when the machine is made"),
            "_log": (PART, "MemoryLog"),
            "_newest": (FILE, "TermsState.newest"),
            "_rows_ticks": (FILE, "TermsState.rows_ticks"),
            "charters": (PART, "Charters"),
            "clock": (PART, "TopicClock"),
            "departed": (PART, "Departed"),
            "floors": (PART, "Floors"),
            "last_confirmed": (FILE, "TermsState.last_confirmed"),
            "quarantine": (PART, "Quarantine"),
            "rows": (PART, "RetainedRows"),
        },
        "Charters": {
            "_begins": (FILE, "TermsState.begins"),
            "_confirmed": (FILE, "TermsState.confirmed"),
            "_delay_us": (FIXED, "given when the machine is made"),
            "_false": (DERIVED, WRONG_TERMS),
            "_known": (FILE, "TermsState.charters"),
            "_log": (PART, "MemoryLog"),
            "acting": (DERIVED, WRONG_TERMS),
        },
        "Departed": dict.fromkeys(("_bytes", "_kept", "_ticks", "count"), (DERIVED, WRONG_DROPS)),
        "TopicClock": {
            "_expected": (DERIVED, WRONG_TERMS),
            "_has_ticked": (DERIVED, WRONG_TERMS),
            "_monotonic": (FILE, "ClockState.monotonic"),
            "_neighbours": (FILE, "ClockState.neighbours"),
            "earlier": (DERIVED, WRONG_TERMS),
            "horizon": (DERIVED, WRONG_TERMS),
            "own": (FILE, "ClockState.own"),
            "tolerance": (FIXED, "given when the machine is made"),
            "topic": (DERIVED, WRONG_TERMS),
        },
        "Floors": {
            "_adopted": (FILE, "FloorsState.adopted_age"),
            "_quantum_us": (FIXED, "given when the machine is made"),
            "stamps": (FILE, "FloorsState.age"),
        },
        "Quarantine": {
            "_log": (PART, "MemoryLog"),
            "_next": (DERIVED, WRONG_TERMS),
            "early": (FILE, "QuarantineState.early"),
            "hidden": (FILE, "QuarantineState.hidden"),
        },
        "RetainedRows": {
            "_log": (PART, "MemoryLog"),
            "_hidden": (FIXED, "that of the quarantine"),
            "policy": (FIXED, "another policy makes another index"),
            "stamps": (PART, "StampIndex"),
            **dict.fromkeys(
                ("_deleted", "_end", "_expiring", "_holders", "_live"), (DERIVED, WRONG_ROWS)
            ),
            **dict.fromkeys(("has_more", "_newest", "_next"), (DERIVED, WRONG_ROWS)),
            "_superseded": (DERIVED, LIVE_ROWS),
        },
        "_Budget": dict.fromkeys(
            ("_decodes", "batches", "records", "size_bytes"), (FIXED, "it lives for one event")
        ),
        "StampIndex": dict.fromkeys(
            ("_buckets", "_firsts", "records", "size_bytes"), (DERIVED, WRONG_ROWS)
        ),
        "_Bucket": dict.fromkeys(
            ("offsets", "records", "size_bytes", "sizes", "stamps", "total"), (DERIVED, WRONG_ROWS)
        ),
        "TransferTracker": {
            "_config": (FIXED, "given when the machine is made"),
            "_received_ticks": (FILE, "TransferState.received_ticks"),
            "_rest_ticks": (FILE, "TransferState.rest_ticks"),
            "_served": (FILE, "TransferState.served"),
            "_source": (FILE, "TransferState.source"),
            "_source_ticks": (FILE, "TransferState.source_ticks"),
        },
        "BackfillClient": {
            "_config": (FIXED, "given when the machine is made"),
            "is_expected": (FILE, "BackfillState.expected"),
            "_replica": (PART, "Replica"),
            "_requests": (FILE, "BackfillState.requests"),
            "run": (FILE, "BackfillState.run"),
            "_transfers": (PART, "TransferTracker"),
        },
        "SyncConfirmations": {
            "_ask_ticks": (FILE, "SyncState.ask_ticks"),
            "_config": (FIXED, "given when the machine is made"),
            "_period": (FILE, "SyncState.period"),
            "nodes": (FILE, "SyncState.confirmed"),
        },
        "Handovers": {
            "_config": (FIXED, "given when the machine is made"),
            "_replica": (PART, "Replica"),
            "_node": (FIXED, "the node's name"),
            "_session": (FILE, "HandoversState.session"),
            "by_receiver": (FILE, "HandoversState.to"),
        },
        "_Handover": {
            "ids": (FILE, "HandoverState.ids"),
            "request": (FILE, "HandoverState.request"),
            "is_waiting": (FILE, "HandoverState.waiting"),
            "ranges": (FILE, "HandoverState.ranges"),
            "session": (FILE, "HandoverState.session"),
            "ticks": (FILE, "HandoverState.ticks"),
        },
        "Drain": {
            "_absent": (FILE, "DrainState.absent"),
            "_everything": (FILE, "DrainState.everything"),
            "_handovers": (PART, "Handovers"),
            "_replica": (PART, "Replica"),
            "_ids": (FILE, "DrainState.ids"),
            "_leaving": (FILE, "DrainState.leaving"),
            "_node": (FIXED, "the node's name"),
            "_rejected": (FILE, "DrainState.passed"),
            "_receiver": (FILE, "DrainState.receiver"),
            "_accepts_volatile": (FILE, "DrainState.takes_memory"),
            "_ticks": (FILE, "DrainState.ticks"),
            "_named": (FILE, "DrainState.told"),
        },
        "Completeness": {
            "_age": (FILE, "CompletenessState.age"),
            "_asked": (FILE, "CompletenessState.asked"),
            "_asked_times": (FILE, "CompletenessState.asked_times"),
            "_confirmed": (FILE, "CompletenessState.confirmed"),
            "_session": (FILE, "CompletenessState.session"),
            "is_complete": (FILE, "CompletenessState.complete"),
        },
        "Replica": {
            "_accepts_opaque": (FIXED, "given when the machine is made"),
            "_config": (FIXED, "given when the machine is made"),
            "log": (PART, "MemoryLog"),
            "retention": (PART, "Retention"),
            "_end": (DERIVED, TWIN),
            "_newest": (FILE, "ReplicaState.numbers"),
            "own": (PART, "OwnSequence"),
            "_spent": (FILE, "ReplicaState.spent"),
            "_trie": (PART, "PublicationTrie"),
            "_unindexed": (FILE, "ReplicaState.unindexed"),
            "_unread": (DERIVED, READING),
            "topic": (FIXED, "given when the machine is made"),
        },
        "UnreadEntries": {
            "_entries": (DERIVED, READING),
            "_parts": (DERIVED, READING),
            "_sorted": (DERIVED, READING),
        },
        "OwnSequence": {
            "_is_challenged": (DERIVED, "test_corrupt_issuer_issues_new_numbers_below_the_clock"),
            "_issued": (DERIVED, "test_corrupt_issuer_issues_new_numbers_below_the_clock"),
            "node": (FIXED, "the node's name"),
            "ahead": (DERIVED, "test_corrupt_issuer_issues_new_numbers_below_the_clock"),
            "incarnation": (DERIVED, "test_corrupt_issuer_issues_new_numbers_below_the_clock"),
        },
        "PublicationTrie": {
            "_bits": (DERIVED, TWIN),
            "_buckets": (FILE, "ReplicaState.index"),
            "_count": (FILE, "ReplicaState.count"),
            "_digests": (FILE, "SubscriberState.hashes"),
            "_scrubbed": (FILE, "ReplicaState.scrubbed"),
        },
        "MemoryLog": {
            "_batches": (FILE, "SubscriberState.publications"),
            "_starts": (FIXED, "the log stands for a disk, which assigns the offsets"),
            "_end": (FIXED, "the log stands for a disk, which assigns the offsets"),
            "_records": (FIXED, "the log stands for a disk, which counts its records"),
            "_dead": (FIXED, "the log stands for a disk, which counts what it dropped"),
            "_removed": (FIXED, "the log stands for a disk, which records what was dropped"),
            "_newest": (FIXED, "the log stands for a disk, which records what was dropped"),
            "low": (FIXED, "the log stands for a disk, which records what was dropped"),
            "terms": (FIXED, "the log stands for a disk, which keeps them"),
        },
        "SubscriberTopics": {
            "_config": (FIXED, "given when the machines are made"),
            "by_topic": (PART, "Subscriber"),
            "_node": (FIXED, "the node's name"),
            "_open_log": (FIXED, "given by the host"),
            "_rng": (FIXED, "chance is no state: any outcome is possible at any time"),
        },
        "NameRegistry": {
            "_answers": (DERIVED, ONE_HOLDER),
            "_conflicts": (DERIVED, ONE_HOLDER),
            "_denied": (DERIVED, ONE_HOLDER),
            "_holders": (DERIVED, ONE_HOLDER),
            "_misses": (DERIVED, ONE_HOLDER),
            "_pending": (DERIVED, ONE_HOLDER),
            "_ticks": (DERIVED, ONE_HOLDER),
        },
        "_Pending": {
            "asked": (DERIVED, ONE_HOLDER),
            "attempt": (DERIVED, ONE_HOLDER),
            "process": (DERIVED, ONE_HOLDER),
            "since": (DERIVED, ONE_HOLDER),
        },
        "Quotas": {
            "_subjects": (DERIVED, "test_wrong_charges_are_corrected_within_a_tick"),
            "_topics": (DERIVED, "test_wrong_charges_are_corrected_within_a_tick"),
            "_total": (DERIVED, "test_wrong_charges_are_corrected_within_a_tick"),
        },
        "SupervisorTopics": {
            "_budget": (PART, "DetectorBudget"),
            "_config": (FIXED, "given when the machines are made"),
            "_first": (
                DERIVED,
                "test_wrong_index_of_the_first_topic_is_corrected_at_the_next_tick",
            ),
            "_machines": (PART, "Supervisor"),
        },
    }
)
ROWS: Final = [
    pytest.param(kind, what, id=f"{name}.{attribute}")
    for name, rows in TABLE.items()
    for attribute, (kind, what) in rows.items()
]


FILE_ROWS: Final = [
    pytest.param(name, attribute, what, id=f"{name}.{attribute}")
    for name, rows in TABLE.items()
    for attribute, (kind, what) in rows.items()
    if kind == FILE
]


DERIVED_ROWS: Final = [
    (name, attribute, what)
    for name, rows in TABLE.items()
    for attribute, (kind, what) in rows.items()
    if kind == DERIVED
]
NAMED_ROWS: Final = [row for row in DERIVED_ROWS if row[2] != TWIN]
TWIN_ROWS: Final = [row[:2] for row in DERIVED_ROWS if row[2] == TWIN]
AUDIT_TICKS: Final = 16
NUMBERS: Final = (-(10**30), -1, 0, 1, 3, 7, 10**30)
# Valid and invalid values of the derived variables.
ARBITRARY: Final[Mapping[str, Iterable[object]]] = MappingProxyType(
    {
        "RingDigest._own": (None, Peer(Label.nth(0), "x"), Peer(Label.nth(9), "m")),
        "Broadcast._is_view_sure": (True, False),
        "Broadcast._routes": (
            None,
            {},
            {None: Route((), frozenset())},
            {"a": Route(("x",), frozenset())},
        ),
        "Broadcast._view": NUMBERS,
        "Replica._end": (None, *NUMBERS),
        "PublicationTrie._bits": (0, 1, 2, 3),
    }
)


def modules() -> list[str]:
    """Return the names of all modules of the core."""
    found = walk_packages(core.__path__, "skipring.core.")
    return [each.name.removeprefix("skipring.core.") for each in found if not each.ispkg]


def state_class(name: str) -> type[Struct]:
    """Return a class of values of the world file."""
    found = (getattr(import_module(f"skipring.core.{each}"), name, None) for each in modules())
    return next(each for each in found if each is not None)


def classes_with_state(name: str) -> Iterator[type]:
    """Return the classes of a module, except values, protocols and enumerations."""
    module = import_module(f"skipring.core.{name}")
    for found in vars(module).values():
        if isclass(found) and found.__module__ == module.__name__ and has_state(found):
            yield found


def has_state(kind: type) -> bool:
    """Return True if instances of a class can change."""
    if issubclass(kind, Struct):
        return not kind.__struct_config__.frozen
    is_protocol = getattr(kind, "_is_protocol", False)
    return not is_protocol and not issubclass(kind, Enum | tuple)


def attributes(kind: type) -> set[str]:
    """Return the slots or fields of a class, and the attributes that its methods assign."""
    if issubclass(kind, Struct):
        return set(kind.__struct_fields__)
    found = set(getattr(kind, "__slots__", ()))
    for node in ast.walk(ast.parse(dedent(getsource(kind)))):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


@cache
def overwritten() -> Mapping[str, set[str]]:
    """Return the attributes that each test overwrites, itself or in functions that it names."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for name in functions:
            if name.startswith("test_"):
                found[name] = set[str]().union(*map(stored_in, used_from(name, functions)))
    return found


def used_from(name: str, functions: Mapping[str, ast.FunctionDef]) -> list[ast.FunctionDef]:
    """Return a function, and those of its module that it names, in its decorators too."""
    waiting, names = [name], {name}
    while waiting:
        nodes = ast.walk(functions[waiting.pop()])
        named = {node.id for node in nodes if isinstance(node, ast.Name)} & functions.keys() - names
        names |= named
        waiting += named
    return [functions[each] for each in sorted(names)]


def stored_in(function: ast.FunctionDef) -> set[str]:
    nodes = ast.walk(function)
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}


def test_every_attribute_of_every_machine_has_a_row() -> None:
    machines = [name for name in modules() if name not in PURE]
    found = {kind.__name__: attributes(kind) for m in machines for kind in classes_with_state(m)}
    assert found == {name: set(rows) for name, rows in TABLE.items()}


def test_pure_module_exists_and_has_no_variables() -> None:
    assert set(PURE) <= set(modules())
    found = {kind.__name__ for name in PURE for kind in classes_with_state(name)}
    assert found == set(TRANSIENT)


def test_attribute_without_a_slot_is_found() -> None:
    class Machine:
        __slots__ = ("_one",)

        def change(self) -> None:
            self._two, self.three = 2, 3  # type: ignore[attr-defined]

    assert attributes(Machine) == {"_one", "_two", "three"}


def test_field_of_a_mutable_struct_is_found() -> None:
    class Changing(Struct):
        one: int

    class Value(Struct, frozen=True):
        one: int

    assert (has_state(Changing), has_state(Value)) == (True, False)
    assert attributes(Changing) == {"one"}


@pytest.mark.parametrize(("kind", "what"), ROWS)
def test_row_names_a_field_a_test_a_part_or_a_reason(kind: str, what: str) -> None:
    if kind == FILE:
        name, _, field = what.partition(".")
        assert field in state_class(name).__struct_fields__
    elif kind == PART:
        assert what in TABLE
    elif kind == DERIVED:
        assert what == TWIN or what in overwritten()
    else:
        assert kind == FIXED
        assert len(what.split()) > 1


@pytest.mark.parametrize(("name", "attribute", "test"), NAMED_ROWS)
def test_test_of_a_derived_variable_overwrites_it(name: str, attribute: str, test: str) -> None:
    assert attribute in overwritten()[test], f"{test} does not corrupt {name}.{attribute}"


@pytest.mark.parametrize(("name", "attribute"), TWIN_ROWS)
def test_any_value_of_a_derived_variable_is_corrected_within_16_ticks(
    name: str, attribute: str
) -> None:
    values = ARBITRARY[f"{name}.{attribute}"]
    assert values
    for value in values:
        assert heals(name, attribute, value, ticks=AUDIT_TICKS), value


def test_variable_that_no_tick_derives_does_not_heal() -> None:
    assert not heals("Replica", "topic", "other", ticks=AUDIT_TICKS)


@pytest.mark.parametrize(("name", "attribute", "field"), FILE_ROWS)
def test_changed_value_survives_state_and_load(name: str, attribute: str, field: str) -> None:
    assert carries(name, attribute, field), f"{name}.{attribute} is not carried by {field}"


@pytest.mark.parametrize(
    ("name", "attribute", "field"),
    [
        ("TransferTracker", "_rest_ticks", "TransferState.source_ticks"),
        ("_Handover", "ticks", "HandoverState.session"),
        ("Supervisor", "_ticks", "SupervisorState.next"),
    ],
)
def test_field_of_another_attribute_does_not_carry_an_attribute(
    name: str, attribute: str, field: str
) -> None:
    assert not carries(name, attribute, field)


def test_every_field_of_the_state_has_a_row() -> None:
    named = {what for rows in TABLE.values() for kind, what in rows.values() if kind == FILE}
    named |= {"SubscriberState.right"}  # the second of the neighbours
    named |= {f"FloorsState.{each}" for each in ("full", "tombstones", "adopted_tombstones")}
    for name in {what.partition(".")[0] for what in named}:
        fields = {f"{name}.{field}" for field in state_class(name).__struct_fields__}
        parts = {f for f in fields if f.partition(".")[2] in _PARTS}
        assert fields - parts == {what for what in named if what.startswith(f"{name}.")}


_PARTS: Final = frozenset(
    {
        *("memory", "spreading", "announcing", "repair", "histories", "scrub", "holdings"),
        *("handovers", "drain", "completeness", "detector", "backfill", "sync"),
        *("terms", "exchange", "clock", "floors", "quarantine"),
    }
)
