"""Backfill of a new member: pages from the logs of several neighbours, each of other prefixes.

Anti-entropy finds every missing publication, but if nearly all are missing there is nothing to
compare. A node that has joined a topic asks its neighbours for the size of their logs. If a log is
much larger than its own, it reads the log in pages. It replaces a source that does not answer or
that is too slow (P6). Anti-entropy supplies the publications that are new or that the backfill has
missed.

``TransferTracker`` records which histories a node sends and receives, so that no other session
transfers the same publications (T8).

The node rates each source (``SourceProgress``). A source earns credit with each page and pays one
tick of credit for each tick in which a request is open. It is too slow once its credit is below 0.
Only publications count: new ones, and known ones up to the number that the node holds. So a source
earns nothing with offsets or with repeated rows. A share of the count that it claims is progress
too, for at most ``SHARES`` ticks per prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Backfilled, Outbox
from skipring.core.limits import NUMBER_MAX, SURVEY_BITS_MAX
from skipring.core.log import HistoryPage
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.log_pages import decode_page
from skipring.core.peers import NodeId
from skipring.core.replica import Replica
from skipring.core.state import (
    PATIENCE_TICKS,
    BackfillRunState,
    BackfillSourceState,
    BackfillState,
    LogExtent,
    SourceProgress,
    TransferState,
)
from skipring.core.trie import OFFSET_MAX

SOURCES_MAX: Final = 4  # Guess: more sources do not fill a link faster.
SHARE: Final = 2  # A node with less than 1/SHARE of a log needs a backfill.
PAGES_MAX: Final = 1 << 16  # Limit for one neighbour: some gigabytes.


class _Served(Struct, frozen=True, gc=False):
    """Session in which a node is sent a history, and the ticks until that is forgotten."""

    session: int
    ticks: int


class TransferTracker:
    """Histories that one subscriber sends or receives."""

    __slots__ = (
        "_config",
        "_received_ticks",
        "_rest_ticks",
        "_served",
        "_source",
        "_source_ticks",
    )

    def __init__(self, config: ProtocolConfig) -> None:
        self._config = config
        self._source: NodeId | None = None  # sender; None during a backfill
        self._source_ticks = 0  # ticks left to wait for the next part
        self._received_ticks = 0  # ticks in a row with a history under way
        self._rest_ticks = 0  # ticks left in which histories block no session
        self._served: dict[NodeId, _Served] = {}  # receivers

    @property
    def is_receiving(self) -> bool:
        """Return True while a history arrives; other sessions wait until it ends."""
        return self._source_ticks > 0

    @property
    def is_reading(self) -> bool:
        """Return True during a backfill, from several sources at once."""
        return self.is_receiving and self._source is None

    def on_tick(self) -> None:
        """Count one tick; end histories that have stalled or lasted too long."""
        # Memory may be corrupted: clamp counters to the values that they are set to.
        ticks_max = self._config.history_ticks
        self._source_ticks = max(min(self._source_ticks, ticks_max) - 1, 0)
        self._rest_ticks = max(min(self._rest_ticks, self._config.history_rest_ticks) - 1, 0)
        self._received_ticks = max(self._received_ticks, 0) + 1 if self.is_receiving else 0
        if self._received_ticks >= self._config.history_ticks_max:
            self._source_ticks = self._received_ticks = 0
            self._rest_ticks = self._config.history_rest_ticks
        self._served = {
            node: _Served(served.session, min(served.ticks, ticks_max) - 1)
            for node, served in self._served.items()
            if served.ticks > 1
        }

    def on_sent(self, to: NodeId, session: int, count: int) -> None:
        """Record the number of publications sent in one reply; many of them are a history."""
        if count > self._config.repair_announce_max:
            self._served[to] = _Served(session, self._config.history_ticks)

    def on_received(self, sender: NodeId | None, count: int, *, is_last: bool) -> None:
        """Record the number of new publications in one message; many of them are a history."""
        if (
            count > self._config.repair_announce_max
            and sender is not None
            and self._rest_ticks == 0
        ):
            self._source, self._source_ticks = sender, self._config.history_ticks
        if is_last and sender == self._source:
            self._source_ticks = 0

    def on_page(self, *, is_last: bool) -> None:
        """Record a page of a backfill, which has several sources."""
        if self._rest_ticks > 0:
            return
        self._source = None
        # After the last page, wait for the next tick: other pages of this turn come first.
        self._source_ticks = 1 if is_last else self._config.history_ticks

    def is_other(self, sender: NodeId, session: int) -> bool:
        """Return True if a session would transfer the same publications as a current history."""
        if self.is_receiving and sender != self._source:
            return True
        served = self._served.get(sender)
        return served is not None and served.session != session

    def state(self) -> TransferState:
        """Return the variables as a value."""
        served = {node: (each.session, each.ticks) for node, each in self._served.items()}
        return TransferState(
            source=self._source,
            source_ticks=self._source_ticks,
            received_ticks=self._received_ticks,
            rest_ticks=self._rest_ticks,
            served=served,
        )

    def load(self, state: TransferState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._source, self._source_ticks = state.source, state.source_ticks
        self._received_ticks, self._rest_ticks = state.received_ticks, state.rest_ticks
        self._served = {node: _Served(*each) for node, each in state.served.items()}


TICK_BYTES_MIN: Final = 64 * 1024  # Guess: a slower link is useless for a history.
SHARES: Final = 256  # Guess: 1/256 of the log is progress too, however small its rows are.
READ_TICKS_MAX: Final = 64  # Guess: after that, a node asks for handovers during the backfill.


class PageRead(Struct, frozen=True, gc=False):
    """Accepted publications of one page: bytes, number, and number of new ones."""

    size_bytes: int
    rows: int
    new: int


def after_page(progress: SourceProgress, page: PageRead, held: int, count: int) -> SourceProgress:
    """Return the progress of a source after a page.

    ``held``: publications that the node holds now. ``count``: publications that the source claims
    to have.
    """
    known = min(page.rows - page.new, max(held - progress.known, 0))
    counted = page.new + known
    shared = min(counted, max(count - progress.rows, 0))
    size_bytes = page.size_bytes * counted / max(page.rows, 1)
    earned = max(size_bytes / TICK_BYTES_MIN, SHARES * shared / max(count, 1))
    return SourceProgress(
        credit=min(progress.credit + earned, float(PATIENCE_TICKS)),
        rows=progress.rows + counted,
        known=progress.known + known,
    )


class BackfillClient:
    """Backfill of one topic at one node."""

    __slots__ = ("_config", "_is_expected", "_replica", "_requests", "_run", "_transfers")

    def __init__(
        self, replica: Replica, transfers: TransferTracker, config: ProtocolConfig
    ) -> None:
        self._config = config
        self._replica = replica
        self._transfers = transfers
        self._is_expected = False  # from joining until the node has neighbours
        self._requests = 0
        self._run: BackfillRunState | None = None

    @property
    def is_running(self) -> bool:
        """Return True during a backfill."""
        return self._run is not None

    @property
    def is_awaited(self) -> bool:
        """Return True while handovers should wait for the backfill (READ_TICKS_MAX ticks)."""
        return self._run is not None and self._run.ticks < READ_TICKS_MAX

    @property
    def is_first(self) -> bool:
        """Return True during a backfill of a node without publications of an earlier run."""
        return self._run is not None and not self._run.held

    def expect(self) -> None:
        """Start a backfill as soon as the node has neighbours: it has joined the topic."""
        self._is_expected = self._config.backfills

    def forget(self) -> None:
        """Drop the backfill: the node leaves the topic."""
        self._is_expected, self._run = False, None

    def maybe_start(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Start an expected backfill, if there are neighbours."""
        if not self._is_expected or not neighbours:
            return
        self._is_expected = False
        sources: dict[NodeId, BackfillSourceState] = {}
        for node in neighbours[:SOURCES_MAX]:
            sources[node] = BackfillSourceState(request=self._next_request())
            out.send(node, GetLogInfo(sources[node].request, None, None))
        self._run = BackfillRunState(sources=sources, held=self._replica.count)
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
        self._run = run = replace(run, ticks=run.ticks + 1)
        for node, source in list(run.sources.items()):
            progress = source.progress
            if source.is_asked:
                progress = replace(progress, credit=progress.credit - 1)
                run.sources[node] = replace(source, progress=progress)
            if progress.credit < 0:
                self._run = run = _without(run, node)
        self._advance(run, out, is_throttled=is_throttled)

    def _sound_run(self) -> BackfillRunState | None:
        """Return the current run; drop it if corrupted memory has made it unusable."""
        run = self._run
        if run is not None and not _is_sound(run):
            self._run = run = None
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
            extent = LogExtent(message.store, message.epoch, message.end, message.count)
            run.sources[sender] = replace(source, extent=extent, progress=SourceProgress())
        elif isinstance(message, LogPage) and source.extent is not None and source.is_asked:
            page = self._accepted(source, source.extent, message)
            if page is None:
                run = _without(run, sender)
            else:
                self._follow(run, sender, message.next, out, is_throttled=is_throttled)
                is_new = self._store(run, sender, source.extent, page, out)
        else:
            run = _without(run, sender)
        self._run = run
        self._advance(run, out, is_throttled=is_throttled)
        return is_new or self._run is None

    def _accepted(
        self, source: BackfillSourceState, extent: LogExtent, page: LogPage
    ) -> HistoryPage | None:
        """Return the contents of a page, or None if the source should be replaced."""
        is_onward = page.next is None or source.start < page.next <= extent.end
        if not is_onward or source.pages >= PAGES_MAX:
            return None
        return decode_page(page.publications, page.ids)

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
        page: HistoryPage,
        out: Outbox,
    ) -> bool:
        """Store the publications of a page; return True if one of them is new."""
        if not page.publications:
            return False
        assert page.encoded is not None
        before = self._replica.count
        is_new = self._replica.add_backfill(page, out)
        if is_new:
            self._transfers.on_page(is_last=False)
        count, source = self._replica.count, run.sources[node]
        read = PageRead(len(page.encoded.data), len(page.publications), count - before)
        progress = after_page(source.progress, read, count, extent.count)
        run.sources[node] = replace(source, progress=progress)
        return is_new

    def _advance(self, run: BackfillRunState, out: Outbox, *, is_throttled: bool) -> None:
        """Assign prefixes to idle sources; end the backfill when no prefix remains."""
        if not run.is_reading:
            if any(source.extent is None for source in run.sources.values()):
                return  # the size of a log is not known yet
            run = _chosen(run, self._replica.count, self._config.backfill_min)
        prefixes = run.prefixes
        for node, source in run.sources.items():
            if source.prefix is None and prefixes:
                prefix, *rest = prefixes
                run.sources[node] = replace(source, prefix=prefix, start=0, is_held=True)
                prefixes = tuple(rest)
        self._run = run = replace(run, prefixes=prefixes)
        for node in run.sources:
            self._ask(run, node, out, is_throttled=is_throttled)
        if all(source.prefix is None for source in run.sources.values()):
            self._run = None
            self._transfers.on_page(is_last=True)
            out.effects.append(Backfilled())

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
        )
        run.sources[node] = replace(source, request=request.request, is_held=False)
        out.send(node, request)

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> BackfillState:
        """Return the variables as a value."""
        return BackfillState(
            expected=self._is_expected,
            requests=self._requests,
            run=_copied(self._run) if self._run is not None else None,
        )

    def load(self, state: BackfillState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._is_expected, self._requests = state.expected, state.requests
        self._run = _copied(state.run) if state.run is not None else None


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
        and min(source.progress.rows, source.progress.known) >= 0
        for source in run.sources.values()
    )


def _chosen(run: BackfillRunState, held: int, backfill_min: int) -> BackfillRunState:
    """Return the run with the sources that have a much larger log, and prefixes for them."""
    counts = {
        node: source.extent.count
        for node, source in run.sources.items()
        if source.extent is not None
    }
    # The second largest count: a single source with a false count excludes no other source.
    usual = sorted(counts.values())[-2:][:1]
    for node, number in counts.items():
        is_less = any(SHARE * number < each for each in usual)
        if number - held < backfill_min or SHARE * held > number or is_less:
            del run.sources[node]
    # Few prefixes: a source scans its whole log for each prefix.
    bits = max(len(run.sources) - 1, 0).bit_length()
    prefixes = tuple(range(1 << bits)) if run.sources else ()
    return replace(run, bits=bits, prefixes=prefixes, is_reading=True)
