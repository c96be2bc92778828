"""Overview of all topics and supervisors, for ``skipring top`` and the dashboard."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import sqrt
from random import Random
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from skipring.admin.diagnosis import live_violations
from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.core.peers import NodeId, TopicId
from skipring.errors import SkipringError, UnreachableError
from skipring.net.addresses import parse_supervisors
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import Address, GetSupervisorStatus, SupervisorStatus, TopicStatus

if TYPE_CHECKING:  # Importing it loads cryptography, which few processes need.
    from skipring.security.credentials import Credentials

ANSWER_S: Final = 1.0  # Guess: polls repeat often, so they do not wait long for absent peers.
TOPICS_MAX: Final = 64  # Limit: of more topics, only the largest are inspected.
PAGES_MAX: Final = 64  # pages of topics: a supervisor has at most 10,000 topics
DIFFERING_MAX: Final = 8  # Guess: an operator does not read more names in a table.
# Guess: long enough to distinguish one request per interval from two.
WINDOW_TICKS: Final = 30
SAMPLES_MAX: Final = 64
# Upper bound of the mean number of requests per interval from a healthy ring to its supervisor
# (decision 0012). Single intervals exceed it often: two nodes ask 0.75 times on average, and twice
# in one interval of eight.
REQUESTS_BOUND: Final = 0.912
# Guess: a legitimate ring exceeds the maximum in fewer than one poll of a thousand.
DEVIATIONS_MAX: Final = 4.0


class TopicRow(Struct, frozen=True, kw_only=True):
    """Summary of a topic."""

    topic: TopicId
    members: int
    publications: int  # the maximum over members
    rate: float  # publications per second
    lag: int  # difference between the largest and the smallest count
    roots: int  # number of different roots
    differs: tuple[NodeId, ...]  # some nodes whose root differs from the most common one
    wrong: int  # violations of the ring

    @property
    def is_legitimate(self) -> bool:
        """Return True if the topic has members and its ring has no violations."""
        return self.members > 0 and self.wrong == 0

    @property
    def is_healthy(self) -> bool:
        """Return True if the ring is legitimate and all members have the same publications."""
        return self.is_legitimate and self.roots <= 1


class SupervisorRow(Struct, frozen=True, kw_only=True):
    """Summary of a supervisor; zeros if it does not answer."""

    address: Address
    answers: bool
    topics: int = 0
    members: int = 0
    ticks: int = 0
    requests: float = 0.0  # per interval, over all topics
    requests_max: float = 0.0  # for healthy rings; more is unlikely by chance
    suspects: int = 0
    evictions: int = 0


class Overview(Struct, frozen=True, kw_only=True):
    """All topics, the largest first, and all supervisors."""

    topics: tuple[TopicRow, ...]
    supervisors: tuple[SupervisorRow, ...]
    unlisted: int = 0  # topics that were not inspected


class Pace:
    """Growth rate of a counter over a sliding window."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    @property
    def span(self) -> float:
        """Return the length of the window that the samples cover."""
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def add(self, value: float, at: float | None = None) -> float:
        """Add a value; return its growth per unit of time over the window."""
        now = at if at is not None else time.monotonic()
        if self._samples and (now < self._samples[-1][0] or value < self._samples[-1][1]):
            self._samples.clear()  # the counter or the clock restarted
        self._samples.append((now, value))
        while now - self._samples[0][0] > self._window and self._samples[1] != self._samples[-1]:
            self._samples.popleft()
        begin, first = self._samples[0]
        return (value - first) / (now - begin) if now > begin else 0.0


RATE_WINDOW_S: Final = 5.0  # Guess: steady enough to read, and quick to show a change.


class Observer:
    """Poller of all topics of the given supervisors."""

    def __init__(
        self, supervisors: Sequence[Address], credentials: Credentials | None = None
    ) -> None:
        self._supervisors = parse_supervisors(supervisors, is_secured=credentials is not None)
        # Publications from the dashboard may be in memory only if members have no disk.
        self.client = RpcClient(
            self._supervisors, rng=Random(), credentials=credentials, is_volatile=True
        )
        self.inspections: dict[TopicId, Inspection] = {}  # the last inspection of each topic
        self.statuses: dict[Address, SupervisorStatus | None] = {}
        self.requests: dict[TopicId, float] = {}  # recent requests per interval
        self._rates: dict[TopicId, Pace] = {}
        self._paces: dict[TopicId, Pace] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self.client.__aexit__()

    async def overview(self) -> Overview:
        """Inspect all topics once; raise UnreachableError if no inspection ever succeeded."""
        topics = await self._topics()
        if not self.inspections and not any(self.statuses.values()):
            raise UnreachableError("; ".join(map(self.client.no_supervisor_at, self._supervisors)))
        largest = sorted(topics, key=lambda each: (-each.members, each.topic))[:TOPICS_MAX]
        # Topics seen before are inspected too: a supervisor may have lost them.
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
        """Inspect a topic; an error does not affect the other topics."""
        try:
            await self.inspect(topic)
        except SkipringError:
            self.inspections.pop(topic, None)

    async def inspect(self, topic: TopicId) -> Inspection | None:
        """Inspect a topic, in part even while its supervisor does not answer.

        Return None if the supervisor never answered. Raise SkipringError if it does not serve the
        topic, or if its answer does not end.
        """
        inspector = Inspector(
            self.client, topic, patience_s=ANSWER_S, supervisor_patience_s=ANSWER_S
        )
        before = self.inspections.get(topic)
        if before is not None and not self._may_answer(topic):
            seen = await inspector.inspect_again(before, TopicContents.NOTHING)
        else:
            try:
                seen = await inspector.inspect(TopicContents.NOTHING, before)
            except UnreachableError:
                if inspector.is_refused:
                    raise
                self.statuses[self.client.supervisor_of(topic)] = None
                return None
        self.inspections[topic] = seen
        return seen

    def _may_answer(self, topic: TopicId) -> bool:
        """Return False if the supervisor of a topic did not answer the last request."""
        address = self.client.supervisor_of(topic)
        return address not in self.statuses or self.statuses[address] is not None

    # -- supervisors ---------------------------------------------------------------------------

    async def _topics(self) -> list[TopicStatus]:
        """Return the topics of all supervisors that answer."""
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
        """Return the topics of a supervisor; it may still list topics of another one."""
        own = (each for each in listed if self.client.supervisor_of(each.topic) == address)
        return iter({each.topic: each for each in own}.values())

    async def _pages(self, address: Address) -> list[SupervisorStatus]:
        pages: list[SupervisorStatus] = []
        start: int | None = 0
        while start is not None and len(pages) < PAGES_MAX:
            question = partial(GetSupervisorStatus, start=start)
            page = await self.client.request_supervisor(
                address, question, SupervisorStatus, ANSWER_S
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
    """Return a number of requests per interval that legitimate rings rarely exceed.

    Each span is the number of intervals over which the requests of one topic were counted. Nodes
    ask independently of each other, so the variance of a count is at most its mean. One interval is
    added to each span: nodes and supervisor do not tick at the same time.
    """
    expected = [(REQUESTS_BOUND * (span + 1), span) for span in spans if span > 0]
    mean = sum(count / span for count, span in expected)
    return mean + DEVIATIONS_MAX * sqrt(sum(count / span**2 for count, span in expected))


def roots_of(inspection: Inspection) -> dict[NodeId, bytes]:
    """Return the root of each member's trie."""
    return {node: each.root for node, each in inspection.statuses.items() if each.member}


def differing(roots: Mapping[NodeId, bytes]) -> Iterator[NodeId]:
    """Return the nodes whose root differs from the most common one."""
    usual = most_common(roots.values())
    return (node for node, root in roots.items() if root != usual)


def most_common(roots: Iterable[bytes]) -> bytes | None:
    """Return the most common root; None if there are no members."""
    ranking = Counter(roots).most_common(1)
    return ranking[0][0] if ranking else None
