"""Overview of all topics and supervisors, for ``skipring top`` and the dashboard."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import sqrt
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from skipring.admin.health import live_violations
from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.core.peers import NodeId, TopicId
from skipring.errors import SkipringError, UnreachableError
from skipring.net.addresses import parse_supervisors
from skipring.rpc.client import RpcClient
from skipring.wire.monitor_rpc import GetSupervisorStatus, SupervisorStatus, TopicStatus
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Credentials

ANSWER_S: Final = 1.0  # what is looked at again and again does not wait long for those who are gone
TOPICS_MAX: Final = 64  # Limit of ours: of more topics only the largest are looked into.
PAGES_MAX: Final = 64  # of topics: a supervisor has 10,000 at most
DIFFERING_MAX: Final = 8  # Our guess: more names in a table are not read.
# Our guess: long enough to tell one request an interval from two.
WINDOW_TICKS: Final = 30
SAMPLES_MAX: Final = 64
# The mean of what a legitimate ring asks of its supervisor in an interval is below this
# (decision 0012). Single intervals exceed it often: two nodes ask 0.75 times on average, and twice
# in one interval of eight.
REQUESTS_BOUND: Final = 0.912
# Guess: a legitimate ring is above the maximum in fewer than one look of a thousand.
DEVIATIONS_MAX: Final = 4.0


class TopicRow(Struct, frozen=True, kw_only=True):
    """A topic at a glance."""

    topic: TopicId
    members: int
    publications: int  # as many as anybody has
    rate: float  # publications a second
    lag: int  # how many fewer the one has that has least
    roots: int  # different ones
    differs: tuple[NodeId, ...]  # some of those who have another root than most
    wrong: int  # things that keep the ring from being legitimate

    @property
    def legitimate(self) -> bool:
        """True if the ring is as it should be."""
        return self.members > 0 and self.wrong == 0

    @property
    def healthy(self) -> bool:
        """True if the ring is legitimate and all members have the same publications."""
        return self.legitimate and self.roots <= 1


class SupervisorRow(Struct, frozen=True, kw_only=True):
    """A supervisor at a glance; zeros if it does not answer."""

    address: Address
    answers: bool
    topics: int = 0
    members: int = 0
    ticks: int = 0
    requests: float = 0.0  # in an interval, over all topics
    requests_max: float = 0.0  # of legitimate rings; more is not chance
    suspects: int = 0
    evictions: int = 0


class Overview(Struct, frozen=True, kw_only=True):
    """All topics, the largest first, and all supervisors."""

    topics: tuple[TopicRow, ...]
    supervisors: tuple[SupervisorRow, ...]
    unlisted: int = 0  # topics that are not looked into


class Pace:
    """How much something grows while something else does, over a window of the latter."""

    def __init__(self, window: float, clock: Callable[[], float] | None = None) -> None:
        self._window = window
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    @property
    def span(self) -> float:
        """How long the samples cover."""
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def add(self, value: float, at: float | None = None) -> float:
        """Note a value; how much it has grown for each of the other, lately."""
        now = at if at is not None else (self._clock or time.monotonic)()
        if self._samples and (now < self._samples[-1][0] or value < self._samples[-1][1]):
            self._samples.clear()  # it has begun anew
        self._samples.append((now, value))
        while now - self._samples[0][0] > self._window and self._samples[1] != self._samples[-1]:
            self._samples.popleft()
        begin, first = self._samples[0]
        return (value - first) / (now - begin) if now > begin else 0.0


RATE_WINDOW_S: Final = 5.0  # Our guess: steady enough to be read, and it soon shows a change.


class Observer:
    """Looks at all topics of some supervisors, again and again."""

    def __init__(
        self, supervisors: Sequence[Address], credentials: Credentials | None = None
    ) -> None:
        self._supervisors = parse_supervisors(supervisors, is_secured=credentials is not None)
        # What somebody publishes while watching may be in memory only, where members have no disk.
        self.outsider = RpcClient(
            self._supervisors, rng=Random(), credentials=credentials, is_volatile=True
        )
        self.inspections: dict[TopicId, Inspection] = {}  # what was last seen
        self.statuses: dict[Address, SupervisorStatus | None] = {}
        self.requests: dict[TopicId, float] = {}  # in an interval, lately
        self._rates: dict[TopicId, Pace] = {}
        self._paces: dict[TopicId, Pace] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self.outsider.__aexit__(kind, error, trace)

    async def overview(self) -> Overview:
        """Look at everything once; UnreachableError if nothing was ever seen."""
        topics = await self._topics()
        if not self.inspections and not any(self.statuses.values()):
            raise UnreachableError(
                "; ".join(map(self.outsider.no_supervisor_at, self._supervisors))
            )
        largest = sorted(topics, key=lambda each: (-each.members, each.topic))[:TOPICS_MAX]
        # Those seen before are looked at too: a supervisor may have forgotten them.
        known = dict.fromkeys([*(each.topic for each in largest), *self.inspections])
        names = list(islice(known, 2 * TOPICS_MAX))
        await asyncio.gather(*map(self._try_to_inspect, names))
        self.inspections = {
            name: seen
            for name in names
            if (seen := self.inspections.get(name)) is not None and seen.is_known
        }
        self._rates = {n: pace for n, pace in self._rates.items() if n in self.inspections}
        return Overview(
            topics=tuple(map(self._row, self.inspections)),
            supervisors=tuple(map(self._supervisor_row, self._supervisors)),
            unlisted=sum(each.topic not in self.inspections for each in topics),
        )

    async def _try_to_inspect(self, topic: TopicId) -> None:
        """One topic of which nothing can be seen does not keep us from the others."""
        try:
            await self.inspect(topic)
        except SkipringError:
            self.inspections.pop(topic, None)

    async def inspect(self, topic: TopicId) -> Inspection | None:
        """Look at a topic; as far as that goes, also while its supervisor does not answer.

        None if it never did; SkipringError if it does not serve the topic, or what it says has no
        end.
        """
        inspector = Inspector(self.outsider, topic)
        inspector.patience_s = inspector.supervisor_patience_s = ANSWER_S
        before = self.inspections.get(topic)
        if before is not None and not self._may_answer(topic):
            seen = await inspector.inspect_again(before, TopicContents.NOTHING)
        else:
            try:
                seen = await inspector.inspect(TopicContents.NOTHING, before)
            except UnreachableError:
                if inspector.is_refused:
                    raise
                self.statuses[self.outsider.supervisor_of(topic)] = None
                return None
        self.inspections[topic] = seen
        return seen

    def _may_answer(self, topic: TopicId) -> bool:
        """False if the supervisor of a topic was silent when we last asked."""
        address = self.outsider.supervisor_of(topic)
        return address not in self.statuses or self.statuses[address] is not None

    # -- supervisors ---------------------------------------------------------------------------

    async def _topics(self) -> list[TopicStatus]:
        """The topics of all supervisors that answer."""
        pages = await asyncio.gather(*(self._pages(each) for each in self._supervisors))
        requests: dict[TopicId, float] = {}
        paces: dict[TopicId, Pace] = {}
        topics = []
        for address, found in zip(self._supervisors, pages, strict=True):
            listed = tuple(each for page in found for each in page.topics)
            self.statuses[address] = replace(found[0], topics=listed) if found else None
            for each in self._own(address, listed):
                pace = paces[each.topic] = self._paces.get(each.topic) or Pace(WINDOW_TICKS)
                requests[each.topic] = pace.add(each.requests, found[0].ticks)
                topics.append(each)
        self.requests, self._paces = requests, paces
        return [each for each in topics if each.members]

    def _own(self, address: Address, listed: Iterable[TopicStatus]) -> Iterator[TopicStatus]:
        """The topics that belong to a supervisor; it may still have some of another one's."""
        own = (each for each in listed if self.outsider.supervisor_of(each.topic) == address)
        return iter({each.topic: each for each in own}.values())

    async def _pages(self, address: Address) -> list[SupervisorStatus]:
        pages: list[SupervisorStatus] = []
        start: int | None = 0
        while start is not None and len(pages) < PAGES_MAX:
            page = await self.outsider.request_supervisor(
                address, _question(start), SupervisorStatus, ANSWER_S
            )
            if not isinstance(page, SupervisorStatus):
                break
            pages.append(page)
            start = page.next if page.next is None or page.next > start else None
        return pages

    def _supervisor_row(self, address: Address) -> SupervisorRow:
        status = self.statuses.get(address)
        if status is None:
            return SupervisorRow(address=address, answers=False)
        own = list(self._own(address, status.topics))
        return SupervisorRow(
            address=address,
            answers=True,
            topics=status.total,
            members=sum(each.members for each in own),
            ticks=status.ticks,
            requests=sum(self.requests.get(each.topic, 0.0) for each in own),
            requests_max=requests_max(
                pace.span for each in own if (pace := self._paces.get(each.topic)) is not None
            ),
            suspects=status.suspects,
            evictions=status.evictions,
        )

    # -- topics --------------------------------------------------------------------------------

    def _row(self, topic: TopicId) -> TopicRow:
        inspection = self.inspections[topic]
        counts = [status.count for status in inspection.statuses.values() if status.member]
        pace = self._rates.setdefault(topic, Pace(RATE_WINDOW_S))
        roots = roots_of(inspection)
        return TopicRow(
            topic=topic,
            members=len(counts),
            publications=max(counts, default=0),
            rate=pace.add(max(counts, default=0)),
            lag=max(counts, default=0) - min(counts, default=0),
            roots=len(set(roots.values())),
            differs=tuple(differing(roots))[:DIFFERING_MAX],
            wrong=sum(1 for _ in live_violations(inspection)),
        )


def requests_max(spans: Iterable[float]) -> float:
    """Return the requests per interval that legitimate rings stay below, except by rare chance.

    Each span is the number of intervals over which the requests of one topic were counted. Nodes
    ask independently of each other, so the variance of a count is at most its mean. One interval is
    added to each span: nodes and supervisor do not tick at the same time.
    """
    expected = [(REQUESTS_BOUND * (span + 1), span) for span in spans if span > 0]
    mean = sum(count / span for count, span in expected)
    return mean + DEVIATIONS_MAX * sqrt(sum(count / span**2 for count, span in expected))


def _question(start: int) -> Callable[[int], GetSupervisorStatus]:
    return lambda request: GetSupervisorStatus(request, start)


def roots_of(inspection: Inspection) -> dict[NodeId, bytes]:
    """The root of each member's trie."""
    return {node: each.root for node, each in inspection.statuses.items() if each.member}


def differing(roots: Mapping[NodeId, bytes]) -> Iterator[NodeId]:
    """Those who have another root than most."""
    usual = most_common(roots.values())
    return (node for node, root in roots.items() if root != usual)


def most_common(roots: Iterable[bytes]) -> bytes | None:
    """The root that most have; None if there is nobody."""
    ranking = Counter(roots).most_common(1)
    return ranking[0][0] if ranking else None
