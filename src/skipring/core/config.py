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
from msgspec.structs import replace


class Rule(StrEnum):
    """Departure from the paper's pseudocode that can be switched off."""

    PROBE = "R1"  # ask a displaced shortcut for its label; do not assume the slot's label
    FIRST_HAND = "R2"  # only the supervisor or the peer itself changes ring neighbours
    EQUAL_LABEL = "R8"  # refer another node with this node's label to the supervisor
    NEIGHBOUR_TIMEOUT = "R9"  # request the configuration if a ring neighbour is silent
    SUPERVISOR_FIRST = "R10"  # refer a misplaced peer to the supervisor; do not forward it
    WAKE = "R11"  # an unrecorded member asks about its shortcuts too, not only left, right, ring
    CONFLICT = "R12"  # two peers with one label: ask about this node and the new peer
    NO_WRAP_FORWARDING = "R13"  # never forward candidates for the wrap edge
    DIGEST = "R14"  # a sum over the tree shows the supervisor errors that round robin finds late
    QUEUE = "R15"  # the supervisor answers each subject once, with a limit per tick
    REPAIR_OVER_SHORTCUTS = "R16"  # compare tries over shortcuts too, not only in the ring
    ANNOUNCE_REPAIRS = "R17"  # announce repaired publications to neighbours that may lack them
    PUSH = "S11"  # after a change of the roster, inform exactly the affected members
    OVERWRITE = "B13"  # a configuration replaces the neighbours; it is not merged with them
    RARE_REQUESTS = "k+1"  # ask with probability 1/(2^(k+1) k^2): two labels have length 1
    COMPLEMENT = "T3"  # CheckAndPublish fetches everything missing, not only the first sibling
    COVER = "T4"  # a summary of a prefix is answered with the publications missing there
    NO_NOISE = "T6"  # send no empty Publish, and no digests of leaves
    ONE_SESSION = "T8"  # start no session while this node's last one is open
    SCRUB = "T10"  # derive digests and ids from the publications again, in slices
    BATCH = "batch"  # all open tuples in one message, several levels at a time
    DETERMINISTIC = (
        "D1"  # counters and fixed sequences instead of coins (the paper's open question)
    )


class Mode(StrEnum):
    """Named set of rules."""

    PAPER = "paper"
    FIXED = "fixed"
    FAST = "fast"
    DETERMINISTIC = "deterministic"  # fast, without coins


_FIXED: Final = frozenset(
    {
        Rule.PROBE,
        Rule.FIRST_HAND,
        Rule.NEIGHBOUR_TIMEOUT,
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
    {
        Mode.PAPER: frozenset(),
        Mode.FIXED: _FIXED,
        Mode.FAST: frozenset(Rule) - {Rule.DETERMINISTIC},
        Mode.DETERMINISTIC: frozenset(Rule),
    }
)


class Preset(StrEnum):
    """Named set of constants."""

    LIVE = "live"  # for live processes
    EAGER = "eager"  # without deferral, for proofs and transcripts


class Spread(StrEnum):
    """Method of broadcasting a new publication (section 4.3)."""

    ADAPTIVE = "adaptive"  # over the tree; over all edges while the view is recent
    TREE = "tree"
    FLOOD = "flood"  # as in the paper


class Rules(Struct, frozen=True, gc=False):
    """Active rules, one attribute per rule, because every handler reads them."""

    probe: bool
    first_hand: bool
    equal_label: bool
    neighbour_timeout: bool
    supervisor_first: bool
    wake: bool
    conflict: bool
    no_wrap_forwarding: bool
    digest: bool
    queue: bool
    repair_over_shortcuts: bool
    announce_repairs: bool
    push: bool
    overwrite: bool
    rare_requests: bool
    complement: bool
    cover: bool
    no_noise: bool
    one_session: bool
    scrub: bool
    batch: bool
    deterministic: bool

    @classmethod
    def of(cls, mode: Mode = Mode.FAST, without: Iterable[Rule] = ()) -> Self:
        """Return the rules of a mode, except those in ``without``."""
        chosen = MODE_RULES[mode] - frozenset(without)
        return cls(**{rule.name.lower(): rule in chosen for rule in Rule})


# Algorithm 5, PublishNew: the pseudocode floods, so mode paper floods too.
MODE_SPREAD: Final[Mapping[Mode, Spread]] = MappingProxyType(
    {mode: Spread.FLOOD if mode is Mode.PAPER else Spread.ADAPTIVE for mode in Mode}
)


class ProtocolConfig(Struct, frozen=True, gc=False):
    """Constants of the protocol."""

    rules: Rules = Rules.of()
    # R9. Measured: below 8 a slow scheduler triggers false timeouts; above 64 repair is delayed.
    neighbour_timeout_ticks_min: int = 8
    neighbour_timeout_ticks_max: int = 64
    # R15. Measured: a lost database causes 15-20 requests per node. With n/8 answers per tick each
    # member can get one in 8 ticks, so a member answered less than 8 ticks ago comes last.
    answers_min: int = 64
    answers_share: int = 8
    # Measured: 64 nodes that join at once change most places several times. With a quarter of the
    # budget for repeated answers between two ticks, a join takes 6.0 messages instead of 7.7.
    repeats_share: int = 4
    waiting_max: int = 1 << 20  # Limit: nodes that wait for an answer from the supervisor.
    # R14. Measured: after a change the sum needs one tick per tree level, up and down, to settle.
    digest_settle_ticks: int = 4  # added to 2 ceil(log2 n)
    digest_mismatches: int = 2
    refresh_ticks: int = 16
    refresh_share: int = 16
    # S9. Guess: 12 microseconds per tick; n = 1024 is compared in 128 ticks.
    audited_slots: int = 8
    # Ticks after which a subscriber drops its derived values. Measured: at 16 the simulator loses
    # about 1 % of its events per second.
    audit_ticks: int = 16
    # S10. Guess: long enough to outlive stale requests, short enough to forget crashed nodes.
    suspicion_ticks: int = 64
    # R14. Guess: twice the largest number of children in the tree at 2^64 nodes.
    digest_senders_max: int = 128
    spread: Spread = Spread.ADAPTIVE
    repairs: bool = True  # PublishTimeout; False to observe the broadcast alone
    # For worlds without payloads. An id that cannot be verified could block the real publication.
    accepts_opaque_ids: bool = False
    # Measured at 10^6 publications: 4 levels per message and lists of up to 32 ids need 8 messages.
    batch_levels: int = 4
    listed_ids_max: int = 32
    # T14. Guesses: a slow link carries one chunk per tick; the credit of a tick fills a fast link.
    chunk_bytes: int = 256 * 1024
    # Measured: the reply to claims of this size takes about 30 ms at 10^6 publications.
    claims_bytes: int = 32 * 1024
    answer_chunks: int = 4  # sent in reply to one message
    credit_chunks: int = 64  # sent to one partner per tick
    # T8. Guess: a session without a reply for this many ticks is over.
    session_ticks: int = 3
    # Guess: the wait doubles after each session without a timely reply, up to a minute.
    session_ticks_max: int = 64
    # Guess: ticks to wait for the next part of a history.
    history_ticks: int = 8
    # P6. Guesses: after a history of history_ticks_max ticks, compare tries for history_rest_ticks.
    history_ticks_max: int = 64
    history_rest_ticks: int = 8
    # T18: ticks between sessions double up to this limit while nothing differs; 1: every tick.
    quiet_ticks_max: int = 1
    # Measured: 1.5 microseconds per id, so one slice takes less than 10 ms.
    hashed_ids: int = 4096
    answer_ids: int = 16384  # hashed for the claims of one message: at most 25 ms
    # T10. Guess: at one tick per second a pass over 10^6 publications takes 17 hours. If it misses
    # records, the next pass reads the record of each id and finds the unreadable ones, in another
    # 17 hours. Measured: 0.17 ms per tick with a store on disk, 0.3 ms with payloads of 16 KiB.
    scrubbed_ids: int = 16
    # Use the tree once the view has not changed for this many ticks plus one per level.
    calm_ticks: int = 4
    # Guess: announcements are for new publications; anti-entropy transfers the rest.
    announced_max: int = 1024
    # Index new ids while no publications arrive, many at once. On for live nodes. Off where the
    # trie is compared after each event.
    defers_indexing: bool = False
    want_flushes: int = 1  # Flush events until a missing publication is requested
    # T18: under steady publishing, compare tries in one of this many ticks; 1: in all.
    news_ticks: int = 1
    # Guess: more publications than this in one repair message are history, not news.
    repair_announce_max: int = 64
    # Read large logs of neighbours in pages after joining, ask neighbours for a handover (decision
    # 0049), and ask them to confirm that they are in sync (T19).
    backfills: bool = False
    backfill_min: int = 2048  # Guess: anti-entropy transfers fewer records as quickly.
    requests_handover: bool = False
    confirms_sync: bool = False
    # Section 3.3: report silent neighbours, ping and evict members. Off where an oracle suspects
    # crashed nodes.
    detects_failures: bool = False
    # Retention (decision 0057). Guesses: clocks of a cluster differ by less than the tolerance; the
    # floors of members agree most of the time if they rise in steps of 64 ticks or more.
    clock_tolerance_us: int = 60_000_000
    floor_quantum_us: int = 64_000_000
    policy_delay_us: int = 600_000_000  # Guess: an operator notices a mistake within 10 minutes.
    dropped_batches: int = 1024  # in one event, and at most 4096 decoded records

    @classmethod
    def eager(cls) -> Self:
        """Return the configuration without deferral, for proofs and transcripts."""
        return cls()

    @classmethod
    def live(cls) -> Self:
        """Return the configuration of live processes.

        T18: a live ring is mostly in sync, so members compare tries less and less often, and only
        occasionally while publications are in flight.
        """
        return cls(
            quiet_ticks_max=64,
            news_ticks=8,
            want_flushes=2,
            announced_max=64,
            defers_indexing=True,
            backfills=True,
            requests_handover=True,
            confirms_sync=True,
            detects_failures=True,
        )

    @classmethod
    def of(
        cls,
        mode: Mode,
        without: Iterable[Rule] = (),
        spread: Spread | None = None,
        preset: Preset = Preset.LIVE,
    ) -> Self:
        """Return the configuration of a mode except some rules; ``spread`` overrides the mode's.

        The paper has no deferral, so mode paper is always eager.
        """
        chosen = spread if spread is not None else MODE_SPREAD[mode]
        is_live = preset is Preset.LIVE and mode is not Mode.PAPER
        constants = cls.live() if is_live else cls.eager()
        return replace(constants, rules=Rules.of(mode, without), spread=chosen)
