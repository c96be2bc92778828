"""Rules and constants of the protocol, each with its source.

The rules have the names of the decision records. Each rule can be switched off alone, so that its
effect can be measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from msgspec import Struct


class Rule(StrEnum):
    """A departure from the paper's pseudocode that can be switched off."""

    PROBE = "R1"  # displaced shortcuts are asked who they are, not filed under the slot's label
    FIRST_HAND = "R2"  # ring neighbours change by the supervisor's or their own word only
    EQUAL_LABEL = "R8"  # somebody else with our label is a case for the supervisor
    SILENCE = "R9"  # a ring neighbour that has gone quiet makes us ask for our configuration
    SUPERVISOR_FIRST = "R10"  # what would be passed on hop by hop goes to the supervisor
    WAKE = "R11"  # an unrecorded member asks about its shortcuts too, not only left, right, ring
    CONFLICT = "R12"  # two nodes under one label: ask about oneself and the stranger
    NO_WRAP_FORWARDING = "R13"  # candidates for the wrap edge are never passed on
    DIGEST = "R14"  # a sum over the tree shows the supervisor what round robin finds too late
    QUEUE = "R15"  # the supervisor answers each subject once, and only so many an interval
    REPAIR_OVER_SHORTCUTS = "R16"  # tries are compared over shortcuts too, not only in the ring
    RUMOURS = "R17"  # what has come by repair is announced to the neighbours, who may lack it too
    PUSH = "S11"  # a change of the roster is told to exactly those it concerns
    OVERWRITE = "B13"  # a configuration replaces the neighbours instead of joining them
    RARE_REQUESTS = "k+1"  # ask with 1/(2^(k+1) k^2), since two labels have length 1
    COMPLEMENT = "T3"  # CheckAndPublish brings all that is missing, not the first sibling only
    COVER = "T4"  # who says what it holds under a prefix is sent what it lacks there
    NO_NOISE = "T6"  # no empty Publish, and leaves without digests
    ONE_SESSION = "T8"  # no new comparison while one's own last one goes on
    SCRUB = "T10"  # digests and ids are derived from the publications again, slice by slice
    BATCH = "batch"  # all open tuples in one message, several levels at a time


class Mode(StrEnum):
    """A named set of rules."""

    PAPER = "paper"
    FIXED = "fixed"
    FAST = "fast"


_FIXED: Final = frozenset(
    {
        Rule.PROBE,
        Rule.FIRST_HAND,
        Rule.SILENCE,
        Rule.OVERWRITE,
        Rule.RARE_REQUESTS,
        Rule.COMPLEMENT,
        Rule.COVER,
        Rule.NO_NOISE,
        Rule.ONE_SESSION,
        Rule.SCRUB,
        Rule.BATCH,
    }
)

MODE_RULES: Final[Mapping[Mode, frozenset[Rule]]] = MappingProxyType(
    {Mode.PAPER: frozenset(), Mode.FIXED: _FIXED, Mode.FAST: frozenset(Rule)}
)


class Spread(StrEnum):
    """How a new publication goes round (section 4.3)."""

    ADAPTIVE = "adaptive"  # over the tree, and over all edges while one's view is young
    TREE = "tree"
    FLOOD = "flood"  # the paper's


class Rules(Struct, frozen=True, gc=False):
    """Which rules are on, one attribute a rule: they are read in every handler."""

    probe: bool
    first_hand: bool
    equal_label: bool
    silence: bool
    supervisor_first: bool
    wake: bool
    conflict: bool
    no_wrap_forwarding: bool
    digest: bool
    queue: bool
    repair_over_shortcuts: bool
    rumours: bool
    push: bool
    overwrite: bool
    rare_requests: bool
    complement: bool
    cover: bool
    no_noise: bool
    one_session: bool
    scrub: bool
    batch: bool

    @classmethod
    def of(cls, mode: Mode = Mode.FAST, without: Iterable[Rule] = ()) -> Self:
        """Return the rules of a mode, less some."""
        chosen = MODE_RULES[mode] - frozenset(without)
        return cls(**{rule.name.lower(): rule in chosen for rule in Rule})


# Algorithm 5, PublishNew: the pseudocode floods, so mode paper does.
MODE_SPREAD: Final[Mapping[Mode, Spread]] = MappingProxyType(
    {Mode.PAPER: Spread.FLOOD, Mode.FIXED: Spread.ADAPTIVE, Mode.FAST: Spread.ADAPTIVE}
)


class ProtocolConfig(Struct, frozen=True, gc=False):
    """Every constant of the protocol."""

    rules: Rules = Rules.of()
    # R9, measured: below 8 a slow scheduler looks like silence, above 64 healing waits for it.
    neighbour_timeout_ticks_min: int = 8
    neighbour_timeout_ticks_max: int = 64
    # R15, measured: a lost database brings 15-20 requests a node; with n/8 answers a tick all
    # members can be told once in 8 ticks, so whoever was told less than 8 ticks ago comes last.
    answers_min: int = 64
    answers_share: int = 8
    waiting_max: int = 1 << 20  # Limit of ours: names that a supervisor keeps in mind.
    # R14, measured: the sum needs a tick per tree level to settle after a change, up and down.
    digest_settle_ticks: int = 4  # added to 2 ceil(log2 n)
    digest_mismatches: int = 2
    refresh_ticks: int = 16
    refresh_share: int = 16
    # S9, our guess: 12 microseconds a tick; n = 1024 is compared in 128 ticks.
    audited_slots: int = 8
    # Derived values of a subscriber are dropped once in so many of its ticks. Measured: at 16 the
    # simulator loses about 1 % of its events a second.
    audit_ticks: int = 16
    # S10, our guess: long enough to outlive stale requests, short enough to forget the dead.
    suspicion_ticks: int = 64
    # R14, our guess: twice the tree's largest number of children at 2^64 nodes.
    digest_senders_max: int = 128
    spread: Spread = Spread.ADAPTIVE
    repairs: bool = True  # PublishTimeout; off where spreading alone is looked at
    # For worlds without payloads: an id that nothing vouches for could keep the real one out.
    accepts_opaque_ids: bool = False
    # Measured at 10^6 publications: 4 levels a message and lists of up to 32 ids need 8 messages.
    batch_levels: int = 4
    listed_ids_max: int = 32
    # T14, our guesses: what a slow link carries in a tick, and enough of it to fill a fast one.
    chunk_bytes: int = 256 * 1024
    # Measured: a message of claims this long is answered in about 30 ms at 10^6 publications.
    claims_bytes: int = 32 * 1024
    answer_chunks: int = 4  # sent in answer to one message
    credit_chunks: int = 64  # sent to one partner in a tick
    # T8, our guess: as many silent ticks and nobody waits for an answer any more.
    session_ticks: int = 3
    # Our guess: twice as long after each session that nobody answered in time, up to a minute.
    session_ticks_max: int = 64
    # Our guess: so long after the last part of a history we wait for the next one.
    history_ticks: int = 8
    # P6, our guesses: so many ticks of a history in a row, and tries are compared for some.
    history_ticks_max: int = 64
    history_rest_ticks: int = 8
    # T18: while nothing differs a node compares ever more rarely; 1 means at every tick.
    quiet_ticks_max: int = 1
    # Measured: 1.5 microseconds an id, so nothing stands still for longer than 10 ms.
    hashed_ids: int = 4096
    answer_ids: int = 16384  # for what a message of claims is about: at most 25 ms
    # T10, our guess: 10^6 publications in 17 hours at a tick a second, and what cannot be read any
    # more in the next 17 (its id is looked for then). Measured: 0.17 ms a tick, of
    # a store on the disk; 0.3 ms where payloads have 16 KiB.
    scrubbed_ids: int = 16
    # The tree is for calm weather: this many ticks, and one for each level, without a change.
    calm_ticks: int = 4
    # Our guess: announcements are for what is new; the rest is left to the tries.
    announced_max: int = 1024
    # What is new is passed on and delivered first, and kept later: on for live nodes. Off where the
    # order of all effects is looked at, event by event.
    defers_storage: bool = False
    # Limits of ours: what waits to be kept is gone after a crash. Measured: to keep it takes 2
    # microseconds each, and 2 a KiB, for which nothing else happens: about 35 ms, by both limits.
    deferred_max: int = 16384
    deferred_bytes_max: int = 16 << 20
    # Our guess: the k-th Flush is put off if so many times k squared have arrived; so at 200
    # publications a second for half a second, at some thousand for all of three.
    busy_arrivals: int = 4
    flush_deferrals_max: int = 30  # Our guess: three seconds, at ten a second.
    want_flushes: int = 1  # for which what was only announced may still come by itself
    # T18: of so many ticks in a row with new publications tries are compared in one; 1: in all.
    news_ticks: int = 1
    # Our guess: more than so many publications in one message of a repair are history, not news.
    repair_announce_max: int = 64

    @classmethod
    def of(cls, mode: Mode, without: Iterable[Rule] = (), spread: Spread | None = None) -> Self:
        """Return the configuration of a mode, less some rules; it spreads as the mode does."""
        chosen = spread if spread is not None else MODE_SPREAD[mode]
        return cls(rules=Rules.of(mode, without), spread=chosen)
