"""Backfill of a new member: pages from the logs of several neighbours, one prefix at a time.

Anti-entropy finds every missing publication, but if nearly all are missing there is nothing to
compare. A node that has joined a topic asks its neighbours for the size of their logs. If a log is
much larger than its own, it reads the log in pages. It replaces a source that does not answer or
that is too slow (P6). Anti-entropy supplies the publications that are new or that the backfill has
missed.

A prefix contains all batches of some publishers. So a node gets those of each publisher in the
order of one log, in which they usually rise (docs/ordering.md).

The node rates each source (``SourceProgress``). A source earns credit with each page and pays one
tick of credit for each tick in which a request is open. It is too slow once its credit is below 0.
Only batches count: new ones, and known ones up to the number that the node holds. A source
therefore earns nothing for skipped offsets or repeated batches. A share of the count that it claims
is progress too, for at most ``SHARES`` ticks per prefix
(``test_source_with_small_rows_is_kept_for_their_number``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.batches import RecordBatch, in_sequence
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Backfilled, Origin, Outbox
from skipring.core.limits import NUMBER_MAX, SURVEY_BITS_MAX
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.peers import NodeId
from skipring.core.replica import Replica
from skipring.core.retention.member import NO_TERMS
from skipring.core.state import (
    PATIENCE_TICKS,
    BackfillRunState,
    BackfillSourceState,
    BackfillState,
    LogExtent,
    SourceProgress,
)
from skipring.core.terms import is_fresh
from skipring.core.transfers import TransferTracker
from skipring.core.trie import OFFSET_MAX

SOURCES_MAX: Final = 4  # Guess: more sources do not fill a link faster.
SHARE: Final = 2  # A node with less than 1/SHARE of a log needs a backfill.
PAGES_MAX: Final = 1 << 16  # Limit for one neighbour: a few gigabytes.
TICK_BYTES_MIN: Final = 64 * 1024  # Guess: a slower link is useless for a history.
SHARES: Final = 256  # Guess: 1/256 of the log is progress too, however small its batches are.
READ_TICKS_MAX: Final = 64  # Guess: after that, a node asks for handovers during the backfill.


class PageRead(Struct, frozen=True, gc=False):
    """Genuine batches of one page: bytes, number, and number of new ones."""

    size_bytes: int
    count: int
    new: int


def after_page(progress: SourceProgress, page: PageRead, held: int, count: int) -> SourceProgress:
    """Return the progress of a source after a page.

    ``held``: publications that the node holds now. ``count``: publications that the source claims
    to have.
    """
    known = min(page.count - page.new, max(held - progress.known, 0))
    counted = page.new + known
    shared = min(counted, max(count - progress.batches, 0))
    size_bytes = page.size_bytes * counted / max(page.count, 1)
    earned = max(size_bytes / TICK_BYTES_MIN, SHARES * shared / max(count, 1))
    return SourceProgress(
        credit=min(progress.credit + earned, float(PATIENCE_TICKS)),
        batches=progress.batches + counted,
        known=progress.known + known,
    )


class BackfillClient:
    """Backfill of one topic at one node."""

    __slots__ = ("_config", "_replica", "_requests", "_transfers", "is_expected", "run")

    def __init__(
        self, replica: Replica, transfers: TransferTracker, config: ProtocolConfig
    ) -> None:
        self._config = config
        self._replica = replica
        self._transfers = transfers
        self.is_expected = False  # from joining until the node has neighbours
        self._requests = 0
        self.run: BackfillRunState | None = None

    @property
    def is_running(self) -> bool:
        """Return True during a backfill."""
        return self.run is not None

    @property
    def is_awaited(self) -> bool:
        """Return True while handovers should wait for the backfill (READ_TICKS_MAX ticks)."""
        return self.run is not None and self.run.ticks < READ_TICKS_MAX

    @property
    def is_first(self) -> bool:
        """Return True during a backfill if the node has no publications of an earlier run."""
        return self.run is not None and not self.run.held

    def on_joined(self) -> None:
        """Expect a backfill, which starts once the node has neighbours."""
        self.is_expected = self._config.backfills

    def forget(self) -> None:
        """Drop the backfill; call this when the node leaves the topic."""
        self.is_expected, self.run = False, None

    def maybe_start(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Start an expected backfill, if there are neighbours and this node's log is read."""
        if not self.is_expected or not neighbours or self._replica.is_starting:
            return
        self.is_expected = False
        sources: dict[NodeId, BackfillSourceState] = {}
        for node in neighbours[:SOURCES_MAX]:
            sources[node] = BackfillSourceState(request=self._next_request())
            out.send(node, GetLogInfo(sources[node].request, None, None))
        self.run = BackfillRunState(sources=sources, held=self._replica.count)
        self._transfers.on_page(is_last=False)  # anti-entropy would send the same publications

    def _next_request(self) -> int:
        self._requests = max(self._requests, 0) % NUMBER_MAX + 1
        return self._requests

    def on_tick(self, neighbours: Sequence[NodeId], out: Outbox, *, is_throttled: bool) -> None:
        """Replace sources that do not respond or are too slow."""
        self.maybe_start(neighbours, out)
        run = self._sound_run()
        if run is None:
            return
        self.run = run = replace(run, ticks=run.ticks + 1)
        for node, source in list(run.sources.items()):
            progress = source.progress
            if source.is_asked:
                progress = replace(progress, credit=progress.credit - 1)
                run.sources[node] = replace(source, progress=progress)
            if progress.credit < 0:
                self.run = run = _without(run, node)
        self._advance(run, out, is_throttled=is_throttled)

    def _sound_run(self) -> BackfillRunState | None:
        """Return the current run; drop it if corrupted memory has made it unusable."""
        run = self.run
        if run is not None and not _is_sound(run):
            self.run = run = None
        return run

    def on_answer(
        self,
        sender: NodeId | None,
        message: LogInfo | LogPage | Refused,
        out: Outbox,
        *,
        is_throttled: bool,
    ) -> bool:
        """Handle the response of a source; return True after new publications or the end.

        Ignore responses to other requests.
        """
        run = self._sound_run()
        source = run.sources.get(sender) if run is not None and sender is not None else None
        if run is None or sender is None or source is None or source.request != message.request:
            return False
        is_new = False
        if isinstance(message, LogInfo) and source.extent is None:
            extent = LogExtent(
                message.store, message.epoch, message.end, message.count, message.terms
            )
            run.sources[sender] = replace(source, extent=extent, progress=SourceProgress())
        elif isinstance(message, LogPage) and source.extent is not None and source.is_asked:
            if not _is_onward(source, source.extent, message):
                run = _without(run, sender)
            else:
                self._follow(run, sender, message.next, out, is_throttled=is_throttled)
                is_new = self._store(run, sender, source.extent, message, out)
        else:
            run = _without(run, sender)
        self.run = run
        self._advance(run, out, is_throttled=is_throttled)
        return is_new or self.run is None

    def _follow(
        self,
        run: BackfillRunState,
        node: NodeId,
        following: int | None,
        out: Outbox,
        *,
        is_throttled: bool,
    ) -> None:
        """Request the next page: the source prepares it while this node stores the current one."""
        source = run.sources[node]
        pages = source.pages + 1
        if following is None:
            source = replace(source, prefix=None, progress=SourceProgress(), pages=pages)
        else:
            source = replace(source, start=following, is_held=True, pages=pages)
        run.sources[node] = source
        self._ask(run, node, out, is_throttled=is_throttled)

    def _store(
        self,
        run: BackfillRunState,
        node: NodeId,
        extent: LogExtent,
        page: LogPage,
        out: Outbox,
    ) -> bool:
        """Store the batches of a page; return True if one of them is new."""
        replica = self._replica
        complete = in_sequence(batch for batch in page.batches if batch.body)
        batches: Sequence[RecordBatch] = complete
        if replica.retention is not None:
            batches = replica.trusted(complete, is_from_fresh=is_fresh(extent.terms))
        new = replica.add(batches, out, origin=Origin.REPAIR)
        added = {batch.id for batch in new}
        known = [
            batch
            for batch in complete
            if batch.id not in added
            and (replica.offset_of(batch.id) is not None or _is_refused(batch, replica))
            and batch.is_genuine(replica.topic)
        ]
        if new:
            self._transfers.on_page(is_last=False)
        source = run.sources[node]
        size_bytes = sum(batch.size_bytes for batch in (*new, *known))
        read = PageRead(size_bytes, len(new) + len(known), len(new))
        progress = after_page(source.progress, read, replica.count, extent.count)
        run.sources[node] = replace(source, progress=progress)
        return len(new) > 0

    def _advance(self, run: BackfillRunState, out: Outbox, *, is_throttled: bool) -> None:
        """Assign prefixes to idle sources; end the backfill when no prefix remains."""
        if not run.is_reading:
            if any(source.extent is None for source in run.sources.values()):
                return  # the size of a log is not known yet
            run = _chosen(run, self._replica, self._config.backfill_min)
        prefixes = run.prefixes
        for node, source in run.sources.items():
            if source.prefix is None and prefixes:
                prefix, *rest = prefixes
                run.sources[node] = replace(source, prefix=prefix, start=0, is_held=True)
                prefixes = tuple(rest)
        self.run = run = replace(run, prefixes=prefixes)
        for node in run.sources:
            self._ask(run, node, out, is_throttled=is_throttled)
        if all(source.prefix is None for source in run.sources.values()):
            self.run = None
            self._transfers.on_page(is_last=True)
            out.append(Backfilled())

    def _ask(self, run: BackfillRunState, node: NodeId, out: Outbox, *, is_throttled: bool) -> None:
        """Request the next page of a source, if none is outstanding and the disk keeps up."""
        source = run.sources[node]
        extent, prefix = source.extent, source.prefix
        if extent is None or prefix is None or not source.is_held or is_throttled:
            return
        request = FetchLog(
            self._next_request(),
            extent.store,
            extent.epoch,
            source.start,
            min(max(extent.end, 0), OFFSET_MAX),
            run.bits,
            prefix,
            contents=True,
            by_publisher=True,
        )
        run.sources[node] = replace(source, request=request.request, is_held=False)
        out.send(node, request)

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> BackfillState:
        """Return the variables as a value."""
        return BackfillState(
            expected=self.is_expected,
            requests=self._requests,
            run=_copied(self.run) if self.run is not None else None,
        )

    def load(self, state: BackfillState) -> None:
        """Replace the variables; the value may be corrupted."""
        self.is_expected, self._requests = state.expected, state.requests
        self.run = _copied(state.run) if state.run is not None else None


def _copied(run: BackfillRunState) -> BackfillRunState:
    return replace(run, sources=dict(run.sources))


def _without(run: BackfillRunState, node: NodeId) -> BackfillRunState:
    """Return the run without a source; another source reads its prefix."""
    source = run.sources.pop(node)
    return run if source.prefix is None else replace(run, prefixes=(*run.prefixes, source.prefix))


def _is_sound(run: BackfillRunState) -> bool:
    """Return False if the memory of a run is corrupted; the checks cost less than a page."""
    if not 0 <= run.bits <= SURVEY_BITS_MAX or len(run.sources) > SOURCES_MAX or run.ticks < 0:
        return False
    prefixes = range(1 << run.bits)
    return all(prefix in prefixes for prefix in run.prefixes) and all(
        (source.prefix is None or source.prefix in prefixes)
        and 0 <= source.start <= OFFSET_MAX
        and 0 <= source.pages <= PAGES_MAX
        and source.progress.credit <= PATIENCE_TICKS
        and min(source.progress.batches, source.progress.known) >= 0
        for source in run.sources.values()
    )


def _chosen(run: BackfillRunState, replica: Replica, records_min: int) -> BackfillRunState:
    """Return the run with the sources that have a much larger log, and prefixes for them."""
    held, end, retention = replica.count, replica.log.end, replica.retention
    extents = {
        node: source.extent for node, source in run.sources.items() if source.extent is not None
    }
    counts = {node: extent.count for node, extent in extents.items()}
    ends = {node: extent.end for node, extent in extents.items()}  # in records
    # The second largest count: a single source with a false count excludes no other source.
    usual = sorted(counts.values())[-2:][:1]
    for node, number in counts.items():
        is_less = any(SHARE * number < each for each in usual)
        is_stale = extents[node].terms != NO_TERMS and not is_fresh(extents[node].terms)
        # Deleted keys could return with the history of a stale member.
        is_less |= is_stale and retention is not None and not retention.is_stale
        if ends[node] - end < records_min or SHARE * held > number or is_less:
            del run.sources[node]
    # Few prefixes: a source scans its whole log for each prefix.
    bits = max(len(run.sources) - 1, 0).bit_length()
    prefixes = tuple(range(1 << bits)) if run.sources else ()
    return replace(run, bits=bits, prefixes=prefixes, is_reading=True)


def _is_refused(batch: RecordBatch, replica: Replica) -> bool:
    """Return True if the policy of the topic excludes a batch: it counts as progress."""
    return replica.retention is not None and replica.retention.refuses(batch)


def _is_onward(source: BackfillSourceState, extent: LogExtent, page: LogPage) -> bool:
    """Return True if a page advances in the log of its source."""
    is_onward = page.next is None or source.start < page.next <= extent.end
    return is_onward and source.pages < PAGES_MAX
