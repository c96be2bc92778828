"""Backfill of a new member: several sources in parallel, each with other prefixes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from msgspec import Raw, msgpack
from msgspec.msgpack import encode as packed
from msgspec.structs import replace
from skipring.node.backfill import SHARE, SOURCES_MAX, BackfillClient
from skipring.node.log_server import stored_page

from skipring.core.backfill import PATIENCE_TICKS, READ_TICKS_MAX
from skipring.core.events import HistoryRead
from skipring.core.labels import Label
from skipring.core.log import MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Encoded, Publication
from skipring.core.records import encoded
from skipring.core.subscriber import Subscriber
from skipring.node import backfill, log_server
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.storage.store import PublicationStore
from skipring.wire.limits import PUBLICATIONS_MAX
from skipring.wire.rpc import (
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Refused,
    RuntimeMessage,
)
from tests.support.rings import DEADLINE_S, TOPIC, LiveRing, live_ring, until

NEIGHBOURS = [f"n{number}" for number in range(SOURCES_MAX + 2)]
HISTORY_MIN, PAGE_ROWS = 20, 16
COUNT = 200
ANSWERS_MAX = 1000  # more answers mean that the backfill does not end


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the thresholds of a long history and of a page."""
    monkeypatch.setattr(backfill, "HISTORY_MIN", HISTORY_MIN)
    monkeypatch.setattr(log_server, "PAGE_ROWS_MAX", PAGE_ROWS)


def history(count: int = COUNT, topic: TopicId = TOPIC) -> list[Publication]:
    return [
        Publication(publisher="p", seq=seq, payload=b"%d" % seq, time=1).with_id(topic)
        for seq in range(count)
    ]


class Question(NamedTuple):
    """A request to a source."""

    topic: TopicId
    node: NodeId
    message: RuntimeMessage


class Newcomer:
    """A new member of a topic with a history; records its requests and received pages."""

    def __init__(self, nodes: list[NodeId], count: int = COUNT, held: int = 0) -> None:
        self.stores = {node: MemoryLog(history(count)) for node in nodes}
        self.held = held
        self.label: Label | None = Label.parse("01")
        self.asked: list[Question] = []
        self.open: list[Question] = []
        self.given: list[tuple[TopicId, HistoryRead]] = []
        self.awaited: list[TopicId] = []
        self.client = BackfillClient(self._send, self._deliver)
        self.client.on_joined(TOPIC)

    def _send(self, topic: TopicId, node: NodeId, message: RuntimeMessage) -> None:
        question = Question(topic, node, message)
        self.asked.append(question)
        self.open.append(question)

    def _deliver(self, topic: TopicId, event: HistoryRead) -> None:
        assert (topic, HistoryRead(())) not in self.given, "nothing comes after the end"
        if event.is_awaited:
            self.awaited.append(topic)
        else:
            self.given.append((topic, event))

    @property
    def count(self) -> int:
        return self.held + len(self.got())

    def neighbours(self) -> list[NodeId]:
        return list(self.stores)

    @property
    def machine(self) -> Subscriber:
        """Return the parts of a machine that the backfill reads."""
        return cast("Subscriber", self)

    def got(self, topic: TopicId = TOPIC) -> set[tuple[NodeId, int]]:
        """Return the received publications."""
        return {
            (each.publisher, each.seq)
            for where, event in self.given
            if where == topic
            for each in event.publications
        }

    def has_ended(self, topic: TopicId = TOPIC) -> bool:
        return (topic, HistoryRead(())) in self.given

    def questions(self, node: NodeId | None = None) -> list[FetchLog]:
        """Return the page requests, to one source or to all."""
        return [
            question.message
            for question in self.asked
            if isinstance(question.message, FetchLog) and node in (None, question.node)
        ]

    def begin(self) -> Newcomer:
        self.client.maybe_start(TOPIC, self.machine)
        return self

    def tick(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.client.on_tick(TOPIC, self.machine)

    def receive(
        self, node: NodeId, message: LogInfo | LogPage | Refused, topic: TopicId = TOPIC
    ) -> None:
        self.client.on_answer(node, topic, message, self.machine)

    def true_answer(self, question: Question) -> LogInfo | LogPage:
        archive = self.stores[question.node]
        if isinstance(question.message, GetLogInfo):
            return LogInfo(question.message.request, "", 0, 0, archive.end, archive.end, (), b"")
        assert isinstance(question.message, FetchLog)
        return stored_page(archive, question.message)

    def answer(self, question: Question) -> None:
        """Answer one request truthfully."""
        self.open.remove(question)
        self.receive(question.node, self.true_answer(question), question.topic)

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


EVERYTHING = {("p", seq) for seq in range(COUNT)}


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


def test_survey_waits_for_a_label_and_a_neighbour() -> None:
    newcomer = Newcomer([])
    newcomer.begin().tick()
    newcomer.stores = {"a": MemoryLog(history())}
    newcomer.label = None
    newcomer.begin().tick()
    newcomer.client.maybe_start(TOPIC, None)
    newcomer.client.on_tick(TOPIC, None)
    assert newcomer.asked == []
    newcomer.label = Label.parse("1")
    newcomer.tick()
    assert [each.node for each in newcomer.asked] == ["a"]


def test_backfill_is_announced_once_before_the_first_answer() -> None:
    newcomer = Newcomer(NEIGHBOURS)
    assert newcomer.awaited == []
    newcomer.begin().begin()
    assert (newcomer.awaited, newcomer.given) == ([TOPIC], [])
    newcomer.answer_all()
    assert newcomer.awaited == [TOPIC]
    assert newcomer.has_ended()


def test_completed_backfill_does_not_start_again() -> None:
    newcomer = reading().answer_all()
    assert newcomer.has_ended()
    asked = len(newcomer.asked)
    newcomer.begin().tick(3)
    assert len(newcomer.asked) == asked


def test_topic_that_was_not_joined_starts_no_backfill() -> None:
    newcomer = Newcomer(NEIGHBOURS)
    newcomer.client.maybe_start("other", newcomer.machine)
    newcomer.client.on_tick("other", newcomer.machine)
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
def test_history_is_read_only_if_much_is_missing(count: int, held: int, is_worth_it: bool) -> None:
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


def test_source_with_much_less_than_others_is_not_read() -> None:
    newcomer = Newcomer(NEIGHBOURS[:4])
    newcomer.stores["n1"] = MemoryLog(history(COUNT // SHARE - 1))
    newcomer.stores["n2"] = MemoryLog(history(COUNT // SHARE))
    newcomer.begin().answer_surveys()
    is_read = [newcomer.questions(node) != [] for node in NEIGHBOURS[:4]]
    assert is_read == [True, False, True, True]


def test_claim_of_one_source_alone_excludes_no_other() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2])
    newcomer.stores["n1"] = MemoryLog(history(COUNT // SHARE - 1))
    newcomer.begin().answer_surveys()
    assert [newcomer.questions(node) != [] for node in NEIGHBOURS[:2]] == [True, True]


# -- slow sources (P6) -----------------------------------------------------------------------


def dripped(page: LogPage, skipped: int = 0) -> LogPage:
    """Return a page with only its first publication, which claims to skip some offsets."""
    rows = msgpack.decode(page.publications, type=list[Raw])[:1]
    following = page.offsets[0] + 1 + skipped if page.offsets else None
    return LogPage(page.request, following, page.offsets[:1], page.ids[:32], packed(rows))


def test_source_with_one_publication_every_two_ticks_is_replaced() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2], 4000).begin().answer_surveys()
    for tick in range(20):
        newcomer.answer_all("n0")
        if tick % 2 == 0 and any(each.node == "n0" for each in newcomer.open):
            newcomer.receive("n0", dripped(newcomer.withheld_page("n0")))
        newcomer.tick()
    assert newcomer.has_ended()
    assert len(newcomer.got()) == 4000


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
        assert newcomer.client.is_reading(TOPIC)
        assert newcomer.client.is_awaited(TOPIC) == (tick < READ_TICKS_MAX)
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
    assert sum(len(event.publications) for _, event in newcomer.given) == COUNT


def test_pages_are_followed_to_the_end_of_the_surveyed_log() -> None:
    newcomer = Newcomer(["n0"]).begin().answer_all()
    questions = newcomer.questions()
    assert [each.start for each in questions] == list(range(0, COUNT, PAGE_ROWS))
    assert {each.end for each in questions} == {COUNT}
    assert all(each.contents for each in questions)


def test_received_page_is_delivered_before_the_rest_arrives() -> None:
    newcomer = reading()
    assert 0 < len(newcomer.got()) < COUNT


def test_received_publications_keep_their_stored_bytes() -> None:
    newcomer = reading(2).answer_all()
    *given, _ = newcomer.given
    for _, event in given:
        assert event.encoded == Encoded.of([encoded(p) for p in event.publications])


def test_row_boundaries_do_not_depend_on_the_array_header_of_the_page() -> None:
    newcomer = Newcomer(["n0"]).begin().answer_surveys()
    question = newcomer.last_asked("n0")
    page = newcomer.true_answer(question)
    assert isinstance(page, LogPage)
    rows = [encoded(p) for p in msgpack.decode(page.publications, type=list[Publication])]
    shorter = msgpack.encode([Raw(row) for row in rows])
    assert len(shorter) < len(page.publications)
    newcomer.receive("n0", replace(page, publications=shorter))
    ((_, event),) = newcomer.given
    assert event.encoded == Encoded.of(rows)


def test_pages_are_read_from_the_store_and_epoch_of_the_survey() -> None:
    newcomer = Newcomer(["n0"]).begin()
    (question,) = newcomer.open
    assert isinstance(question.message, GetLogInfo)
    newcomer.receive("n0", LogInfo(question.message.request, "store", 7, 3, 90, 80, (), b""))
    (read,) = newcomer.questions()
    assert (read.store, read.epoch, read.start, read.end) == ("store", 7, 0, 90)


def test_empty_page_is_not_the_end() -> None:
    newcomer = reading(1)
    page = newcomer.withheld_page("n0")
    assert page.next is not None
    newcomer.receive("n0", replace(page, offsets=(), ids=b"", publications=packed(())))
    assert not newcomer.has_ended()
    newcomer.answer_all()
    assert newcomer.has_ended()


# -- failing sources -------------------------------------------------------------------------


def refuse(page: LogPage) -> Refused:
    return Refused(page.request, "the store is another one")


def undecodable(page: LogPage) -> LogPage:
    return replace(page, publications=b"\xc1 is nothing in MessagePack")


def cut_off(page: LogPage) -> LogPage:
    return replace(page, publications=page.publications[:-1])


def of_another_kind(page: LogPage) -> LogPage:
    return replace(page, publications=packed(["a", "b"]))


def too_many(page: LogPage) -> LogPage:
    return replace(page, publications=packed(tuple(history(1) * (PUBLICATIONS_MAX + 1))))


def too_large(page: LogPage) -> LogPage:
    one = Publication(publisher="p" * 100_000, seq=1, payload=b"x", time=1)
    return replace(page, publications=packed((one,)))


FAILURES = [refuse, undecodable, cut_off, of_another_kind, too_many, too_large]


@pytest.mark.parametrize("is_last", [False, True], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("spoilt", FAILURES, ids=lambda spoilt: spoilt.__name__)
def test_pages_of_a_failing_source_are_read_from_another(
    spoilt: Callable[[LogPage], LogPage | Refused], is_last: bool
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


@pytest.fixture(params=[True, False], ids=["collected", "not collected"])
def is_collected(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Enable or disable garbage collection; restore it afterwards."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_garbage_collection_is_restored_after_a_page(is_collected: bool) -> None:
    newcomer = reading(2)
    assert gc.isenabled() == is_collected
    page = newcomer.withheld_page("n1")
    newcomer.receive("n1", undecodable(page))
    assert gc.isenabled() == is_collected


def test_source_of_invalid_pages_is_abandoned() -> None:
    newcomer = reading(2)
    for _ in range(ANSWERS_MAX):
        if all(each.node != "n1" for each in newcomer.open):
            break
        newcomer.receive("n1", undecodable(replace(newcomer.withheld_page("n1"), next=0)))
        newcomer.answer_all("n1")
        newcomer.tick()
    newcomer.answer_all("n1")
    newcomer.assert_complete()


@pytest.mark.parametrize("back", [0, 1, PAGE_ROWS])
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
    newcomer.receive("n0", page, "other topic")
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
    page = LogPage(question.message.request, following, (), b"", packed(()))
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


# -- topics ----------------------------------------------------------------------------------


def test_leaving_ends_the_backfill() -> None:
    newcomer = reading(2)
    given, asked = list(newcomer.given), list(newcomer.asked)
    newcomer.client.forget(TOPIC)
    newcomer.answer_all()
    newcomer.begin().tick(PATIENCE_TICKS + 1)
    assert (newcomer.given, newcomer.asked) == (given, asked)


def test_leaving_before_the_survey_sends_no_request() -> None:
    newcomer = Newcomer(NEIGHBOURS)
    newcomer.client.forget(TOPIC)
    newcomer.begin().tick()
    assert newcomer.asked == []


def test_rejoining_starts_again_and_ignores_old_answers() -> None:
    newcomer = reading(1)
    old = newcomer.true_answer(newcomer.last_asked("n0"))
    newcomer.client.forget(TOPIC)
    newcomer.client.on_joined(TOPIC)
    newcomer.open.clear()
    newcomer.given.clear()
    newcomer.begin()
    newcomer.receive("n0", old)
    assert newcomer.given == []
    newcomer.answer_all()
    assert newcomer.got() == EVERYTHING


def test_two_topics_do_not_disturb_each_other() -> None:
    newcomer = reading(2)
    newcomer.client.on_joined("other")
    newcomer.client.maybe_start("other", newcomer.machine)
    assert {each.topic for each in newcomer.asked} == {TOPIC, "other"}
    newcomer.client.forget("other")
    others = [each for each in newcomer.open if each.topic == "other"]
    for question in others:
        newcomer.answer(question)
    newcomer.answer_all()
    assert newcomer.got() == EVERYTHING
    assert newcomer.got("other") == set()
    assert newcomer.has_ended()
    assert not newcomer.has_ended("other")


def test_two_histories_are_read_at_the_same_time() -> None:
    newcomer = Newcomer(NEIGHBOURS[:2]).begin()
    newcomer.client.on_joined("other")
    newcomer.client.maybe_start("other", newcomer.machine)
    for question in list(newcomer.open):
        newcomer.answer(question)
    for _ in range(ANSWERS_MAX):
        if not newcomer.open:
            break
        newcomer.answer(newcomer.open[-1 if len(newcomer.given) % 2 else 0])
    assert newcomer.got() == newcomer.got("other") == EVERYTHING
    assert newcomer.has_ended()
    assert newcomer.has_ended("other")


# -- real rings ------------------------------------------------------------------------------

HOLDERS = ("b", "c", "d")
LONG = 4000
PAGE_ROWS_LIVE = 128


class Wire:
    """Requests and answers between nodes as they arrive; a deaf node receives nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[tuple[NodeId, NodeId, RuntimeMessage]] = []  # receiver, sender, message
        self.progress: list[int] = []  # publications of the new member when a page arrived
        self.deaf: set[NodeId] = set()
        self.given: list[bytes] = []
        self.hook: Callable[[NodeId, RuntimeMessage], None] = lambda node, message: None
        handle = NodeHost._on_request

        def recording(
            node: NodeHost, sender: NodeId, topic: TopicId, message: RuntimeMessage
        ) -> None:
            self.hook(node.name, message)
            if node.name not in self.deaf:
                self.heard.append((node.name, sender, message))
                if isinstance(message, LogPage):
                    self.progress.append(len(self.given))
                handle(node, sender, topic, message)

        monkeypatch.setattr(NodeHost, "_on_request", recording)

    @property
    def sources(self) -> set[NodeId]:
        """Return the nodes that were read from."""
        return {node for node, _, message in self.heard if isinstance(message, FetchLog)}

    @property
    def rows(self) -> int:
        """Return the number of rows received in pages."""
        return sum(
            len(message.offsets) for *_, message in self.heard if isinstance(message, LogPage)
        )


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    monkeypatch.setattr(backfill, "HISTORY_MIN", LONG // 4)
    monkeypatch.setattr(log_server, "PAGE_ROWS_MAX", PAGE_ROWS_LIVE)
    return Wire(monkeypatch)


def fill(directory: Path, rows: list[Publication]) -> PublicationStore:
    """Return the open store of a node with this history."""
    store = PublicationStore.open(directory)
    store.archive(TOPIC).write(0, *rows)
    store.commit()
    return store


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


def ids_of(node: NodeHost) -> set[bytes]:
    return set(machine_of(node).index().keys())


class Late:
    """A ring of members with a history, and one member that joins later; all have disks."""

    def __init__(self, ring: LiveRing, wire: Wire, tmp_path: Path, stores: ExitStack) -> None:
        self.ring, self.wire = ring, wire
        self._path, self._stores = tmp_path, stores
        self.rows = history(LONG)
        self.ids = {row.id for row in self.rows}

    async def hold(self, spoilt: Mapping[NodeId, list[Publication]]) -> None:
        """Start the members, some with other rows than the history."""
        for name in HOLDERS:
            rows = spoilt.get(name, self.rows)
            await self.ring.join(name, self._stores.enter_context(fill(self._path / name, rows)))
        nodes = [self.ring.nodes[name] for name in HOLDERS]
        await until(lambda: all(len(machine_of(node).ring_neighbours()) == 2 for node in nodes))

    async def come(self) -> NodeHost:
        """Start the new member."""
        store = self._stores.enter_context(PublicationStore.open(self._path / "new"))
        self.wire.given = self.ring.delivered.setdefault("new", [])
        return await self.ring.join("new", store)

    @property
    def nodes(self) -> list[NodeHost]:
        return list(self.ring.nodes.values())

    async def has_all(self, newcomer: NodeHost, ids: set[bytes]) -> None:
        """Wait until a node has everything on its disk."""
        await until(
            lambda: machine_of(newcomer).count >= len(ids) and ids_of(newcomer) == ids,
            lambda: f"{machine_of(newcomer).count} of {len(ids)}",
        )
        await until(lambda: newcomer.durability.unwritten == 0)
        given = self.ring.delivered["new"]
        assert len(given) == len(set(given)) == len(ids)

    async def stored(self) -> set[bytes]:
        """Stop all nodes; return the ids on the disk of the new member."""
        await self.ring.stop()
        self.ring.nodes.clear()
        self._stores.close()
        with PublicationStore.open(self._path / "new") as store:
            assert store.recovery.damage is None
            rows = list(store.archive(TOPIC).publications())
        assert all(row.is_genuine(TOPIC) for row in rows)
        assert len({row.id for row in rows}) == len(rows)
        return {row.id for row in rows}


@asynccontextmanager
async def late(
    wire: Wire,
    tmp_path: Path,
    spoilt: Mapping[NodeId, list[Publication]] | None = None,
    *,
    repairs: bool,
) -> AsyncIterator[Late]:
    """Yield a ring with a history; without anti-entropy all publications arrive by backfill."""
    with ExitStack() as stores:
        async with live_ring() as ring:
            ring.settings = replace(
                ring.settings, config=replace(NodeSettings().config, repairs=repairs)
            )
            scene = Late(ring, wire, tmp_path, stores)
            await scene.hold(spoilt or {})
            yield scene


async def test_new_member_reads_history_from_several_neighbours_once_and_in_pages(
    wire: Wire, tmp_path: Path
) -> None:
    async with late(wire, tmp_path, repairs=False) as here:
        await here.has_all(await here.come(), here.ids)
        assert len(wire.sources) >= 2
        assert any(0 < given < LONG for given in wire.progress)
        assert wire.rows == LONG  # each row once, and nothing was left to anti-entropy
        assert await here.stored() == here.ids


async def test_new_member_gets_history_while_others_publish(wire: Wire, tmp_path: Path) -> None:
    async with late(wire, tmp_path, repairs=True) as here:
        newcomer = await here.come()
        fresh = set()
        for number in range(60):
            publisher = HOLDERS[number % len(HOLDERS)]
            fresh.add(await here.ring.publish(publisher, b"fresh %d" % number))
        await here.has_all(newcomer, here.ids | fresh)
        await until(lambda: all(ids_of(node) == here.ids | fresh for node in here.nodes))
        assert await here.stored() == here.ids | fresh


async def test_new_member_that_publishes_meanwhile_loses_nothing(
    wire: Wire, tmp_path: Path
) -> None:
    async with late(wire, tmp_path, repairs=True) as here:
        newcomer = await here.come()
        fresh = {await here.ring.publish("new", b"fresh %d" % number) for number in range(30)}
        await here.has_all(newcomer, here.ids | fresh)
        await until(lambda: all(ids_of(node) == here.ids | fresh for node in here.nodes))


async def test_neighbour_that_dies_during_a_backfill_is_replaced(
    wire: Wire, tmp_path: Path
) -> None:
    async with late(wire, tmp_path, repairs=False) as here:
        dying = asyncio.get_running_loop().create_future()

        def hook(node: NodeId, message: RuntimeMessage) -> None:
            """Silence the first node that is asked for its third page."""
            asked = sum(by == node and isinstance(m, FetchLog) for by, _, m in wire.heard)
            if isinstance(message, FetchLog) and asked == 2 and not dying.done():
                wire.deaf.add(node)
                dying.set_result((node, machine_of(here.ring.nodes["new"]).count))

        wire.hook = hook
        newcomer = await here.come()
        async with asyncio.timeout(DEADLINE_S):
            victim, count = await dying
        assert count < LONG
        await here.ring.kill(victim)
        await here.has_all(newcomer, here.ids)
        assert await here.stored() == here.ids


def with_spoilt(rows: list[Publication]) -> list[Publication]:
    """Return a history in which every seventh row is corrupt."""
    return [
        replace(row, payload=b"spoilt %d" % row.seq) if row.seq % 7 == 0 else row for row in rows
    ]


async def test_corrupt_rows_of_neighbours_are_refused(wire: Wire, tmp_path: Path) -> None:
    rows = with_spoilt(history(LONG))
    async with late(wire, tmp_path, dict.fromkeys(HOLDERS, rows), repairs=False) as here:
        newcomer = await here.come()
        await until(lambda: wire.rows >= LONG and not newcomer._catching_up._histories)
        sound = {row.id for row in rows if row.is_genuine(TOPIC)}
        assert ids_of(newcomer) == sound
        assert not any(each.startswith(b"spoilt") for each in here.ring.delivered["new"])
        assert await here.stored() == sound


async def test_rows_corrupt_at_the_sources_come_from_others_by_anti_entropy(
    wire: Wire, tmp_path: Path
) -> None:
    rows = with_spoilt(history(LONG))
    async with late(wire, tmp_path, {"b": rows, "c": rows}, repairs=True) as here:
        newcomer = await here.come()
        await here.has_all(newcomer, here.ids)
        assert not any(each.startswith(b"spoilt") for each in here.ring.delivered["new"])
        assert await here.stored() == here.ids
