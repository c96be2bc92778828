"""Backfill: pages from several sources, and the replacement of slow ones (P6)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core import replica as replica_module
from skipring.core.backfill import (
    PATIENCE_TICKS,
    READ_TICKS_MAX,
    SHARE,
    SHARES,
    SOURCES_MAX,
    TICK_BYTES_MIN,
    BackfillClient,
    PageRead,
    after_page,
)
from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Backfilled, Outbox, Rejected, Store
from skipring.core.log import MemoryLog, PageLimits
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.log_pages import log_page
from skipring.core.peers import NodeId
from skipring.core.replica import Replica
from skipring.core.state import (
    BackfillRunState,
    BackfillSourceState,
    BackfillState,
    LogExtent,
    SourceProgress,
)
from skipring.core.transfers import TransferTracker
from skipring.sim.engine import World
from skipring.sim.schedulers import Synchronous, run_rounds
from skipring.world.snapshot import Parcel
from tests.support.batches import batch, batch_of
from tests.support.conversations import standing_ring
from tests.support.fake_host import FakeHost, sent
from tests.support.machines import TOPIC


def ticks_kept(every: int, page: PageRead, count: int, limit: int = 1000) -> int:
    """Return for how many ticks a source is kept that sends such a page every ``every`` ticks."""
    progress, held = SourceProgress(), 0
    for tick in range(limit):
        if tick % every == 0:
            held += page.new
            progress = after_page(progress, page, held, count)
        progress = replace(progress, credit=progress.credit - 1)
        if progress.credit < 0:
            return tick + 1
    return limit


@pytest.mark.parametrize("every", [1, 2])
def test_source_with_one_publication_every_few_ticks_is_replaced_soon(every: int) -> None:
    assert ticks_kept(every, PageRead(1024, 1, 1), 20_000) <= 2 * PATIENCE_TICKS


@pytest.mark.parametrize("every", [1, 2, 3])
def test_source_with_enough_bytes_is_kept(every: int) -> None:
    assert ticks_kept(every, PageRead(every * TICK_BYTES_MIN, 1, 1), 1 << 30) == 1000


def test_source_with_small_rows_is_kept_for_their_number() -> None:
    page = PageRead(1000, 100, 100)
    assert ticks_kept(1, page, 100 * SHARES, SHARES) == SHARES
    assert ticks_kept(1, page, 100 * SHARES) <= SHARES + 2 * PATIENCE_TICKS


def test_source_that_repeats_a_known_row_is_replaced() -> None:
    page = PageRead(TICK_BYTES_MIN, 64, 0)
    assert ticks_kept(1, page, 1 << 30) <= 2 * PATIENCE_TICKS


def test_known_publications_count_once() -> None:
    progress = SourceProgress(credit=0.0)
    page = PageRead(TICK_BYTES_MIN, 64, 0)
    once = after_page(progress, page, 64, 1 << 30)
    assert once.credit == 1.0
    assert after_page(once, page, 64, 1 << 30).credit == 1.0


def test_large_page_earns_no_credit_for_later() -> None:
    progress = after_page(SourceProgress(), PageRead(1 << 40, 1, 1), 1, 1)
    assert progress.credit == SourceProgress().credit


def test_empty_log_causes_no_division_by_zero() -> None:
    assert after_page(SourceProgress(), PageRead(0, 0, 0), 0, 0).credit >= 0


# -- the client -----------------------------------------------------------------------------


NEIGHBOURS = [f"n{number}" for number in range(SOURCES_MAX + 2)]
HISTORY_MIN, PAGE_BATCHES = 20, 16
COUNT = 200
ANSWERS_MAX = 1000  # more answers mean that the backfill does not end


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_max, _, *scanned = log_pages.CONTENT_PAGE
    monkeypatch.setattr(log_pages, "CONTENT_PAGE", PageLimits(bytes_max, PAGE_BATCHES, *scanned))


def history(count: int = COUNT) -> list[RecordBatch]:
    return [
        batch(b"%d" % seq, publisher=publisher_of(seq), first=seq, topic=TOPIC)
        for seq in range(count)
    ]


def publisher_of(seq: int) -> NodeId:
    """Return one of many publishers: their batches are under all prefixes."""
    return f"p{seq % 32}"


class Question(NamedTuple):
    """A request to a source."""

    node: NodeId
    message: GetLogInfo | FetchLog


class Newcomer:
    """A new member of a topic with a history; records its requests and received pages."""

    def __init__(
        self, nodes: list[NodeId], count: int = COUNT, held: int = 0, *, joins: bool = True
    ) -> None:
        self.stores = {node: MemoryLog(history(count)) for node in nodes}
        log = MemoryLog(batch(publisher="q", first=seq, topic=TOPIC) for seq in range(held))
        config = replace(ProtocolConfig.live(), backfill_min=HISTORY_MIN)
        self.replica = Replica(TOPIC, log)
        self.replica.recover({})
        self.transfers = TransferTracker(config)
        self.client = BackfillClient(self.replica, self.transfers, config)
        self.host = FakeHost(self.client, log)
        self.asked: list[Question] = []
        self.open: list[Question] = []
        if joins:
            self.client.on_joined()

    def run(self, action: Callable[[Outbox], object]) -> None:
        self.replica.end_event()
        for node, message in sent(self.host.run(action)):
            assert isinstance(message, GetLogInfo | FetchLog)
            self.asked.append(Question(node, message))
            self.open.append(Question(node, message))

    @property
    def given(self) -> list[Store]:
        """Return the stored pages."""
        return self.host.all(Store)

    def got(self) -> set[tuple[NodeId, int]]:
        """Return publisher and number of the received batches."""
        return {(each.publisher, each.first) for store in self.given for each in store.batches}

    def progress(self, node: NodeId) -> SourceProgress:
        """Return the progress of a source."""
        run = self.client.state().run
        assert run is not None
        return run.sources[node].progress

    def has_ended(self) -> bool:
        return self.host.all(Backfilled) != []

    def questions(self, node: NodeId | None = None) -> list[FetchLog]:
        """Return the page requests, to one source or to all."""
        return [
            question.message
            for question in self.asked
            if isinstance(question.message, FetchLog) and node in (None, question.node)
        ]

    def begin(self) -> Newcomer:
        self.run(lambda out: self.client.maybe_start(list(self.stores), out))
        return self

    def tick(self, ticks: int = 1, *, is_throttled: bool = False) -> None:
        for _ in range(ticks):
            self.run(
                lambda out: self.client.on_tick(list(self.stores), out, is_throttled=is_throttled)
            )

    def receive(
        self, node: NodeId, message: LogInfo | LogPage | Refused, *, is_throttled: bool = False
    ) -> None:
        self.run(lambda out: self.client.on_answer(node, message, out, is_throttled=is_throttled))

    def true_answer(self, question: Question) -> LogInfo | LogPage:
        log = self.stores[question.node]
        if isinstance(question.message, GetLogInfo):
            return LogInfo(question.message.request, "", 0, 0, log.end, log.end, (), b"")
        return log_page(log, question.message)

    def answer(self, question: Question) -> None:
        """Answer one request truthfully."""
        self.open.remove(question)
        self.receive(question.node, self.true_answer(question))

    def withheld_page(self, node: NodeId) -> LogPage:
        """Return the true answer of a source to its open request, and close the request."""
        question = self.last_asked(node)
        self.open.remove(question)
        page = self.true_answer(question)
        assert isinstance(page, LogPage)
        return page

    def refuse(self, node: NodeId) -> None:
        """Refuse the open request to a source."""
        message = self.last_asked(node).message
        assert isinstance(message, FetchLog | GetLogInfo)
        self.receive(node, Refused(message.request, "no"))

    def assert_complete(self) -> None:
        """Assert that the backfill has ended with the whole history."""
        assert self.got() == EVERYTHING
        assert self.has_ended()

    def answer_surveys(self) -> Newcomer:
        for question in list(self.open):
            if isinstance(question.message, GetLogInfo):
                self.answer(question)
        return self

    def answer_all(self, *silent: NodeId) -> Newcomer:
        """Answer all requests except to silent sources, until none is open."""
        for _ in range(ANSWERS_MAX):
            waiting = [question for question in self.open if question.node not in silent]
            if not waiting:
                return self
            self.answer(waiting[0])
        raise AssertionError(f"no end after {ANSWERS_MAX} answers")

    def last_asked(self, node: NodeId) -> Question:
        """Return the open request to a source."""
        (question,) = (each for each in self.open if each.node == node)
        return question


EVERYTHING = {(publisher_of(seq), seq) for seq in range(COUNT)}


def reading(count: int = 3) -> Newcomer:
    """Return a new member that reads from ``count`` sources and has one page of each."""
    newcomer = Newcomer(NEIGHBOURS[:count]).begin().answer_surveys()
    for node in NEIGHBOURS[:count]:
        newcomer.answer(newcomer.last_asked(node))
    assert not newcomer.has_ended()
    assert all(isinstance(each.message, FetchLog) for each in newcomer.open)
    return newcomer


def first_prefix(newcomer: Newcomer, node: NodeId) -> int:
    return newcomer.questions(node)[0].prefix


# -- sources ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, SOURCES_MAX, SOURCES_MAX + 2])
def test_first_neighbours_are_surveyed_up_to_a_limit(count: int) -> None:
    newcomer = Newcomer(NEIGHBOURS[:count]).begin()
    assert [each.node for each in newcomer.asked] == NEIGHBOURS[: min(count, SOURCES_MAX)]
    assert all(isinstance(each.message, GetLogInfo) for each in newcomer.asked)
    requests = [each.message.request for each in newcomer.asked if hasattr(each.message, "request")]
    assert len(set(requests)) == len(requests) == len(newcomer.asked)


def test_survey_waits_for_a_neighbour() -> None:
    newcomer = Newcomer([])
    newcomer.begin().tick()
    assert newcomer.asked == []
    newcomer.stores = {"a": MemoryLog(history())}
    newcomer.tick()
    assert [each.node for each in newcomer.asked] == ["a"]


def test_backfill_starts_after_the_node_has_read_its_own_large_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    newcomer = Newcomer(NEIGHBOURS[:2], held=COUNT // 2)
    newcomer.begin().tick()
    assert newcomer.asked == []
    newcomer.replica.index()
    newcomer.tick()
    assert [each.node for each in newcomer.asked] == NEIGHBOURS[:2]
    newcomer.answer_all()
    assert newcomer.got() == EVERYTHING


def test_backfill_blocks_other_transfers_from_the_start() -> None:
    newcomer = Newcomer(NEIGHBOURS)
    assert not newcomer.transfers.is_reading
    newcomer.begin()
    assert newcomer.transfers.is_reading
    newcomer.answer_all()
    newcomer.transfers.on_tick()
    assert not newcomer.transfers.is_reading


def test_completed_backfill_does_not_start_again() -> None:
    newcomer = reading().answer_all()
    assert newcomer.has_ended()
    asked = len(newcomer.asked)
    newcomer.begin().tick(3)
    assert len(newcomer.asked) == asked


def test_member_that_has_not_joined_starts_no_backfill() -> None:
    newcomer = Newcomer(NEIGHBOURS, joins=False)
    newcomer.begin().tick()
    assert newcomer.asked == []


# -- whether a history is read ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "held", "is_worth_it"),
    [
        (HISTORY_MIN, 0, True),
        (HISTORY_MIN - 1, 0, False),
        (0, 0, False),
        (SHARE * HISTORY_MIN, HISTORY_MIN, True),
        (SHARE * HISTORY_MIN, HISTORY_MIN + 1, False),
        (5 * SHARE * HISTORY_MIN, 5 * HISTORY_MIN, True),
        (5 * SHARE * HISTORY_MIN, 5 * HISTORY_MIN + 1, False),
        (HISTORY_MIN, 10 * HISTORY_MIN, False),
    ],
)
def test_history_is_read_only_if_many_publications_are_missing(
    count: int, held: int, is_worth_it: bool
) -> None:
    newcomer = Newcomer(NEIGHBOURS[:3], count, held).begin().answer_surveys()
    assert (newcomer.questions() != []) is is_worth_it
    assert newcomer.has_ended() is not is_worth_it


def test_reading_waits_for_all_surveys() -> None:
    newcomer = Newcomer(NEIGHBOURS[:3]).begin().answer_all("n2")
    newcomer.tick(PATIENCE_TICKS)
    assert newcomer.questions() == []
    newcomer.answer_all()
    assert newcomer.got() == EVERYTHING


def test_missing_survey_is_not_awaited_for_long() -> None:
    newcomer = Newcomer(NEIGHBOURS[:3]).begin().answer_all("n2")
    newcomer.tick(PATIENCE_TICKS + 1)
    newcomer.answer_all("n2")
    assert newcomer.questions("n2") == []
    newcomer.assert_complete()


def test_source_with_far_fewer_publications_than_others_is_not_read() -> None:
    newcomer = Newcomer(NEIGHBOURS[:4])
    newcomer.stores["n1"] = MemoryLog(history(COUNT // SHARE - 1))
    newcomer.stores["n2"] = MemoryLog(history(COUNT // SHARE))
    newcomer.begin().answer_surveys()
    is_read = [newcomer.questions(node) != [] for node in NEIGHBOURS[:4]]
    assert is_read == [True, False, True, True]


def test_larger_claim_of_a_single_source_does_not_exclude_another() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2])
    newcomer.stores["n1"] = MemoryLog(history(COUNT // SHARE - 1))
    newcomer.begin().answer_surveys()
    assert [newcomer.questions(node) != [] for node in NEIGHBOURS[:2]] == [True, True]


# -- slow sources (P6) -----------------------------------------------------------------------


def dripped(page: LogPage, skipped: int = 0) -> LogPage:
    """Return a page with only its first publication, which claims to skip some offsets."""
    following = page.offsets[0] + 1 + skipped if page.offsets else None
    return LogPage(page.request, following, page.offsets[:1], page.batches[:1])


def test_source_with_one_publication_every_two_ticks_is_replaced() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2], 4000).begin().answer_surveys()
    for tick in range(20):
        newcomer.answer_all("n0")
        if tick % 2 == 0 and any(each.node == "n0" for each in newcomer.open):
            newcomer.receive("n0", dripped(newcomer.withheld_page("n0")))
        newcomer.tick()
    assert newcomer.has_ended()
    assert len(newcomer.got()) == 4000


class Dripping(World):
    """Simulation in which pages of node a have one publication and arrive every two rounds."""

    def deliver(self, parcel: Parcel) -> None:
        """Cut a page of node a, or keep it for the next round."""
        message = parcel.message
        if isinstance(message, LogPage) and parcel.sender == "a":
            if self.round % 2:
                self.channels.append(parcel)
                return
            parcel = Parcel(parcel.to, dripped(message), "a", parcel.serial)
        super().deliver(parcel)


@pytest.mark.parametrize("seed", range(3))
def test_simulated_newcomer_gets_all_although_one_of_its_sources_is_slow(seed: int) -> None:
    ring = standing_ring("abcd")
    made = tuple(
        batch(b"%d" % number, publisher="x", first=number, topic=ring.topic)
        for number in range(600)
    )
    states = {node: replace(state, publications=made) for node, state in ring.subscribers.items()}
    # Without repair: every arrival is part of the backfill or of a handover after it.
    config = replace(ProtocolConfig.live(), backfill_min=100, repairs=False)
    world = Dripping(replace(ring, subscribers=states), seed=seed, config=config)
    world.subscribe("e")
    for _ in range(200):  # the slow source alone would need 600
        run_rounds(world, Synchronous(), 1)
        if "e" in world.backfilled:
            break
    assert world.backfilled == ["e"]
    assert world.subscribers["e"].count == 600


def test_source_that_claims_progress_with_one_row_a_page_is_replaced() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2], 4000).begin().answer_surveys()
    for _ in range(20):
        newcomer.answer_all("n0")
        if any(each.node == "n0" for each in newcomer.open):
            newcomer.receive("n0", dripped(newcomer.withheld_page("n0"), skipped=4000 // 256))
        newcomer.tick()
    assert newcomer.has_ended()


def test_backfill_delays_handovers_for_64_ticks_at_most() -> None:
    newcomer = Newcomer(["n0"], 4000).begin().answer_surveys()
    for tick in range(2 * READ_TICKS_MAX):
        assert newcomer.client.is_running
        assert newcomer.client.is_awaited == (tick < READ_TICKS_MAX)
        page = newcomer.withheld_page("n0")
        newcomer.receive("n0", page)
        newcomer.tick()


def test_backfill_from_slow_sources_only_ends() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2], 4000).begin().answer_surveys()
    for tick in range(40):
        for question in list(newcomer.open) if tick % 2 == 0 else ():
            newcomer.receive(question.node, dripped(newcomer.withheld_page(question.node)))
        newcomer.tick()
        if newcomer.has_ended():
            return
    raise AssertionError("no end")


# -- prefixes and pages ----------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, SOURCES_MAX + 1))
def test_sources_read_disjoint_prefixes_that_cover_everything(count: int) -> None:
    newcomer = Newcomer(NEIGHBOURS[:count]).begin().answer_surveys()
    first = newcomer.questions()
    assert len(first) == len({each.prefix for each in first}) == count
    newcomer.answer_all()
    (bits,) = {each.bits for each in newcomer.questions()}
    begun = [each.prefix for each in newcomer.questions() if each.start == 0]
    assert sorted(begun) == list(range(1 << bits))
    newcomer.assert_complete()
    assert sum(len(store.batches) for store in newcomer.given) == COUNT


def test_pages_are_followed_to_the_end_of_the_surveyed_log() -> None:
    newcomer = Newcomer(["n0"]).begin().answer_all()
    questions = newcomer.questions()
    assert [each.start for each in questions] == list(range(0, COUNT, PAGE_BATCHES))
    assert {each.end for each in questions} == {COUNT}
    assert all(each.contents for each in questions)


def test_received_page_is_delivered_before_the_rest_arrives() -> None:
    newcomer = reading()
    assert 0 < len(newcomer.got()) < COUNT


def test_stored_batches_are_the_received_ones() -> None:
    newcomer = Newcomer(["n0"]).begin().answer_surveys()
    page = newcomer.withheld_page("n0")
    newcomer.receive("n0", page)
    (store,) = newcomer.given
    assert [id(each) for each in store.batches] == [id(each) for each in page.batches]


def test_batches_of_several_records_are_read_by_the_offsets_of_their_records() -> None:
    newcomer = Newcomer(["n0"])
    several = [
        batch_of(*[b"x"] * (1 + n % 3), publisher="p", first=3 * n, topic=TOPIC)
        for n in range(COUNT)
    ]
    newcomer.stores["n0"] = source = MemoryLog(several)
    newcomer.begin()
    (question,) = newcomer.open
    newcomer.open.remove(question)
    survey = LogInfo(question.message.request, "", 0, 0, source.end, COUNT, (), b"")
    newcomer.receive("n0", survey)
    newcomer.answer_all()
    assert newcomer.has_ended()
    assert newcomer.host.stored == several
    starts = [each.start for each in newcomer.questions()]
    firsts = {entry.offset for entry in source.read_range(0, source.end)}
    assert starts == sorted(starts)
    assert {*starts} <= firsts


def test_pages_are_read_from_the_store_and_epoch_of_the_survey() -> None:
    newcomer = Newcomer(["n0"]).begin()
    (question,) = newcomer.open
    assert isinstance(question.message, GetLogInfo)
    newcomer.receive("n0", LogInfo(question.message.request, "store", 7, 3, 90, 80, (), b""))
    (read,) = newcomer.questions()
    assert (read.store, read.epoch, read.start, read.end) == ("store", 7, 0, 90)


def test_empty_page_does_not_end_the_read() -> None:
    newcomer = reading(1)
    page = newcomer.withheld_page("n0")
    assert page.next is not None
    newcomer.receive("n0", replace(page, offsets=(), batches=()))
    assert not newcomer.has_ended()
    newcomer.answer_all()
    assert newcomer.has_ended()


# -- failing sources -------------------------------------------------------------------------


def refuse(page: LogPage) -> Refused:
    return Refused(page.request, "the store is another one")


def survey_again(page: LogPage) -> LogInfo:
    return LogInfo(page.request, "", 0, 0, COUNT, COUNT, (), b"")


def beyond_the_end(page: LogPage) -> LogPage:
    return replace(page, next=COUNT + 1)


FAILURES = [refuse, survey_again, beyond_the_end]


@pytest.mark.parametrize("is_last", [False, True], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("spoilt", FAILURES, ids=lambda spoilt: spoilt.__name__)
def test_pages_of_a_failing_source_are_read_from_another(
    spoilt: Callable[[LogPage], LogInfo | LogPage | Refused], is_last: bool
) -> None:
    newcomer = reading(3)
    if is_last:
        newcomer.answer_all("n1")
        for _ in range(ANSWERS_MAX):
            if newcomer.true_answer(newcomer.last_asked("n1")).next is None:  # type: ignore[union-attr]
                break
            newcomer.answer(newcomer.last_asked("n1"))
    page = newcomer.withheld_page("n1")
    newcomer.receive("n1", spoilt(page))
    newcomer.open = [each for each in newcomer.open if each.node != "n1"]
    asked = len(newcomer.questions("n1"))
    newcomer.answer_all()
    newcomer.tick(PATIENCE_TICKS + 1)
    newcomer.answer_all()
    newcomer.assert_complete()
    assert len(newcomer.questions("n1")) == asked


def with_wrong_id(given: RecordBatch) -> RecordBatch:
    return replace(given, id=b"x" * 32)


def unreadable(given: RecordBatch) -> RecordBatch:
    return replace(given, body=b"\xc1 is nothing in MessagePack").with_id(TOPIC)


def of_another_topic(given: RecordBatch) -> RecordBatch:
    return given.with_id("elsewhere")


def without_body(given: RecordBatch) -> RecordBatch:
    return replace(given, body=b"")


SPOILT = [with_wrong_id, unreadable, of_another_topic, without_body]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_invalid_batches_of_a_page_are_omitted_and_the_others_stored(
    spoil: Callable[[RecordBatch], RecordBatch],
) -> None:
    newcomer = Newcomer(["n0"]).begin().answer_surveys()
    page = newcomer.withheld_page("n0")
    one, two, *others = page.batches
    newcomer.receive("n0", replace(page, batches=(one, spoil(two), *others)))
    (store,) = newcomer.given
    assert store.batches == (one, *others)
    rejected = [] if spoil is without_body else [Rejected(1)]
    assert newcomer.host.all(Rejected) == rejected


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_source_of_invalid_batches_earns_nothing(
    spoil: Callable[[RecordBatch], RecordBatch],
) -> None:
    newcomer = Newcomer(NEIGHBOURS[:2]).begin().answer_surveys()
    newcomer.tick()
    page = newcomer.withheld_page("n1")
    before = newcomer.progress("n1")
    assert before.credit < PATIENCE_TICKS
    newcomer.receive("n1", replace(page, batches=tuple(map(spoil, page.batches))))
    assert newcomer.progress("n1") == before


def test_opaque_batches_with_known_ids_earn_nothing() -> None:
    newcomer = Newcomer(["n0"], 2 * COUNT).begin().answer_surveys()
    page = newcomer.withheld_page("n0")
    newcomer.receive("n0", page)
    newcomer.tick()
    before = newcomer.progress("n0")
    again = replace(newcomer.withheld_page("n0"), batches=tuple(map(without_body, page.batches)))
    newcomer.receive("n0", again)
    assert newcomer.progress("n0") == before


def test_known_batches_earn_as_much_as_new_ones_and_only_once() -> None:
    newcomer = Newcomer(["n0"], 2 * COUNT).begin().answer_surveys()
    first = newcomer.withheld_page("n0")
    newcomer.receive("n0", first)
    new = newcomer.progress("n0")
    assert (new.batches, new.known) == (PAGE_BATCHES, 0)
    newcomer.receive("n0", replace(newcomer.withheld_page("n0"), batches=first.batches))
    known = newcomer.progress("n0")
    assert (known.batches, known.known) == (2 * PAGE_BATCHES, PAGE_BATCHES)
    newcomer.receive("n0", replace(newcomer.withheld_page("n0"), batches=first.batches))
    assert newcomer.progress("n0") == known


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_source_of_invalid_batches_is_replaced_and_its_prefix_read_from_another(
    spoil: Callable[[RecordBatch], RecordBatch],
) -> None:
    newcomer = reading(2)
    for _ in range(PATIENCE_TICKS + 2):
        if any(each.node == "n1" for each in newcomer.open):
            page = newcomer.withheld_page("n1")
            newcomer.receive("n1", replace(page, batches=tuple(map(spoil, page.batches))))
        newcomer.answer_all("n1")
        newcomer.tick()
    newcomer.answer_all("n1")
    newcomer.assert_complete()


@pytest.mark.parametrize("back", [0, 1, PAGE_BATCHES])
def test_source_whose_pages_do_not_advance_is_abandoned(back: int) -> None:
    newcomer = reading(2)
    for _ in range(ANSWERS_MAX):
        if all(each.node != "n1" for each in newcomer.open):
            break
        start = newcomer.questions("n1")[-1].start
        page = newcomer.withheld_page("n1")
        newcomer.receive("n1", replace(page, next=max(start - back, 0)))
        newcomer.answer_all("n1")
    newcomer.answer_all("n1")
    newcomer.assert_complete()


@pytest.mark.parametrize("silent", ["n0", "n1", "n2"])
def test_prefixes_of_a_silent_source_are_read_from_another(silent: NodeId) -> None:
    newcomer = reading(3)
    newcomer.answer_all(silent)
    newcomer.tick(PATIENCE_TICKS)
    assert not newcomer.has_ended()
    newcomer.tick()
    newcomer.answer_all(silent)
    newcomer.tick(PATIENCE_TICKS + 1)
    newcomer.answer_all(silent)
    newcomer.assert_complete()
    prefix = first_prefix(newcomer, silent)
    others = {node for node in newcomer.stores if node != silent}
    assert any(prefix == each.prefix for node in others for each in newcomer.questions(node))


def test_finished_source_takes_over_prefixes_of_another() -> None:
    newcomer = reading(2)
    newcomer.answer_all("n1")
    for _ in range(PATIENCE_TICKS + 1):  # n1 is slow, but answers
        newcomer.tick()
        newcomer.answer(newcomer.last_asked("n1"))
    assert not newcomer.has_ended()
    newcomer.tick(PATIENCE_TICKS + 1)
    newcomer.answer_all("n1")
    assert newcomer.got() == EVERYTHING


def test_slow_source_that_answers_in_time_is_kept() -> None:
    newcomer = reading(2)
    for _ in range(ANSWERS_MAX):
        if not newcomer.open:
            break
        newcomer.tick(PATIENCE_TICKS)
        for question in list(newcomer.open):
            newcomer.answer(question)
    assert newcomer.got() == EVERYTHING
    begun = [each.prefix for each in newcomer.questions() if each.start == 0]
    assert sorted(begun) == [0, 1]


def test_backfill_ends_without_sources_and_leaves_the_rest_to_anti_entropy() -> None:
    newcomer = reading(2)
    newcomer.refuse("n0")
    newcomer.refuse("n1")
    assert newcomer.has_ended()
    assert 0 < len(newcomer.got()) < COUNT


def test_backfill_ends_if_all_surveys_are_refused() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2]).begin()
    newcomer.refuse("n0")
    newcomer.refuse("n1")
    assert newcomer.has_ended()
    assert newcomer.questions() == []


def test_backfill_ends_if_all_sources_are_silent() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2]).begin()
    newcomer.tick(PATIENCE_TICKS + 1)
    assert newcomer.has_ended()


# -- unrequested answers ---------------------------------------------------------------------


def test_unrequested_answers_change_nothing() -> None:
    newcomer = reading(2)
    question = newcomer.last_asked("n0")
    page = newcomer.true_answer(question)
    assert isinstance(page, LogPage)
    given, asked = list(newcomer.given), list(newcomer.asked)
    newcomer.receive("n1", page)  # the request of another source
    newcomer.receive("stranger", page)
    for request in (page.request + 100, page.request - 1, 0):
        newcomer.receive("n0", replace(page, request=request))
        newcomer.receive("n0", Refused(request, "no"))
        newcomer.receive("n0", LogInfo(request, "", 0, 0, 1, 1, (), b""))
    assert (newcomer.given, newcomer.asked) == (given, asked)
    newcomer.answer_all()
    assert newcomer.got() == EVERYTHING


def test_repeated_page_is_accepted_once() -> None:
    newcomer = reading(1)
    question = newcomer.last_asked("n0")
    page = newcomer.true_answer(question)
    newcomer.answer(question)
    given, asked = list(newcomer.given), list(newcomer.asked)
    newcomer.receive("n0", page)
    assert (newcomer.given, newcomer.asked) == (given, asked)


@pytest.mark.parametrize("following", [None, 5])
def test_page_in_answer_to_a_survey_does_no_harm(
    following: int | None,
) -> None:
    newcomer = Newcomer(NEIGHBOURS[:2]).begin()
    question = newcomer.last_asked("n1")
    assert isinstance(question.message, GetLogInfo)
    newcomer.open.remove(question)
    page = LogPage(question.message.request, following, (), ())
    newcomer.receive("n1", page)
    newcomer.tick(PATIENCE_TICKS)
    newcomer.answer_all()
    newcomer.tick(PATIENCE_TICKS + 1)
    newcomer.answer_all()
    newcomer.assert_complete()


def test_survey_in_answer_to_a_page_request_does_no_harm() -> None:
    newcomer = reading(2)
    question = newcomer.last_asked("n1")
    assert isinstance(question.message, FetchLog)
    newcomer.open.remove(question)
    newcomer.receive("n1", LogInfo(question.message.request, "x", 9, 0, 1, 1, (), b""))
    newcomer.answer_all()
    newcomer.tick(PATIENCE_TICKS + 1)
    newcomer.answer_all()
    newcomer.assert_complete()


# -- leaving ---------------------------------------------------------------------------------


def test_leaving_ends_the_backfill() -> None:
    newcomer = reading(2)
    given, asked = list(newcomer.given), list(newcomer.asked)
    newcomer.client.forget()
    newcomer.answer_all()
    newcomer.begin().tick(PATIENCE_TICKS + 1)
    assert (newcomer.given, newcomer.asked) == (given, asked)


def test_leaving_before_the_survey_sends_no_request() -> None:
    newcomer = Newcomer(NEIGHBOURS)
    newcomer.client.forget()
    newcomer.begin().tick()
    assert newcomer.asked == []


def test_rejoining_starts_again_and_ignores_old_answers() -> None:
    newcomer = reading(1)
    old = newcomer.true_answer(newcomer.last_asked("n0"))
    newcomer.client.forget()
    newcomer.client.on_joined()
    newcomer.open.clear()
    given = list(newcomer.given)
    newcomer.begin()
    newcomer.receive("n0", old)
    assert newcomer.given == given
    newcomer.answer_all()
    assert newcomer.got() == EVERYTHING


# -- back-pressure and corrupted memory ------------------------------------------------------


def test_throttled_client_requests_no_page_until_the_disk_keeps_up() -> None:
    newcomer = reading(1)
    page = newcomer.withheld_page("n0")
    asked = len(newcomer.asked)
    newcomer.receive("n0", page, is_throttled=True)
    newcomer.tick(10 * PATIENCE_TICKS, is_throttled=True)
    assert len(newcomer.asked) == asked
    assert not newcomer.has_ended()
    newcomer.tick()
    newcomer.answer_all()
    newcomer.assert_complete()


def sources(draw: Callable[[int, int], int]) -> dict[NodeId, BackfillSourceState]:
    far = 1 << 40
    return {
        f"n{number}": BackfillSourceState(
            request=draw(-1, 3),
            extent=LogExtent("", 0, draw(-far, far), draw(0, 300)) if draw(0, 1) else None,
            prefix=draw(-3, 4) if draw(0, 1) else None,
            start=draw(-1, far),
            is_held=bool(draw(0, 1)),
            progress=SourceProgress(float(draw(-5, 5)), draw(-5, far), draw(-5, far)),
            pages=draw(-1, 5),
        )
        for number in range(draw(0, 6))
    }


@pytest.mark.parametrize("seed", range(200))
def test_backfill_ends_from_any_memory(seed: int) -> None:
    rng = Random(seed)
    newcomer = Newcomer(NEIGHBOURS[:3], joins=False)
    run = BackfillRunState(
        sources=sources(rng.randint),
        prefixes=tuple(rng.randint(-1, 8) for _ in range(rng.randint(0, 3))),
        bits=rng.choice([-1, 0, 1, 2, 8, 9, 1 << 40]),
        is_reading=rng.random() < 0.5,
        held=rng.randint(-5, 5),
        ticks=rng.choice([-1, 0, 1 << 40]),
    )
    newcomer.client.load(BackfillState(requests=rng.randint(-5, 5), run=run))
    for _ in range(30):
        newcomer.tick()
        for question in list(newcomer.open):
            if question.node in newcomer.stores:
                newcomer.answer(question)
    assert not newcomer.client.is_running
    assert newcomer.client.state().run is None


def test_state_is_a_copy_and_can_be_loaded() -> None:
    newcomer = reading(2)
    state = newcomer.client.state()
    newcomer.answer_all()
    assert newcomer.client.state() != state
    other = reading(2)
    other.client.load(state)
    assert other.client.state() == state
    other.answer_all()
    other.assert_complete()


def test_history_of_few_large_batches_is_read_in_pages() -> None:
    for records, is_read in ((HISTORY_MIN - 1, False), (HISTORY_MIN, True)):
        newcomer = Newcomer(NEIGHBOURS[:1]).begin()
        (survey,) = newcomer.open
        newcomer.receive("n0", LogInfo(survey.message.request, "", 0, 0, records, 2, (), b""))
        assert bool(newcomer.questions()) is is_read
        assert newcomer.has_ended() is not is_read


def test_publications_of_a_page_are_stored_by_their_numbers() -> None:
    newcomer = Newcomer(NEIGHBOURS[:1])
    numbers = range(2 * PAGE_BATCHES - 1, -1, -1)  # repaired at the source
    newcomer.stores["n0"] = MemoryLog(
        batch(b"%d" % seq, publisher="p", first=seq, topic=TOPIC) for seq in numbers
    )
    newcomer.begin().answer_surveys().answer_all()
    stored = [[each.first for each in store.batches] for store in newcomer.given]
    assert stored == [[*range(16, 32)], [*range(16)]]
