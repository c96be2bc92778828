"""Member stores of a topic, and the snapshot that members agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from logging import getLogger
from time import sleep
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from skipring.core.limits import is_same_chain
from skipring.core.log_messages import LogInfo
from skipring.core.peers import NodeId, TopicId
from skipring.core.retention.charter import Policy
from skipring.core.terms import is_same
from skipring.errors import DataLossError, UnreachableError
from skipring.rpc.client import ATTEMPTS
from skipring.rpc.log_reader import LogRange, MemberLog
from skipring.spark.arrow import entries
from skipring.spark.offsets import Entry, LogPlace
from skipring.spark.ring_client import RingClient
from skipring.wire.limits import LOCATED_MAX
from skipring.wire.rpc import Address

_LOG: Final = getLogger(__name__)

LOOKS: Final = 4  # a member may be restarting
LOOKS_AT_MANY: Final = 8  # Guess: a supervisor names 32 random members at a time.
AGAIN_S: Final = 1.0  # Guess: a node restarts within a few of these.


class MemberStores:
    """Members by store, with their last known addresses."""

    def __init__(self, client: RingClient) -> None:
        self._client = client
        self._known: dict[tuple[TopicId, str], tuple[NodeId, Address]] = {}

    def find(self, topic: TopicId, place: LogPlace, looks: int = LOOKS_AT_MANY) -> MemberLog | None:
        """Return the member that has the log of a place; None if no member has it.

        Its survey has the chain value at the place. Raise UnreachableError if no member answers.
        """
        if holder := self.known(topic, place):
            return holder
        for look in range(looks):
            try:
                holders = self._survey(topic, offset=place.offset)
            except UnreachableError:  # a member or a supervisor may be restarting
                if look + 1 >= min(looks, LOOKS):
                    raise
                holders = []
            named = [each for each in holders if each.survey.store == place.store]
            if named:
                return next((each for each in named if has_place(each.survey, place)), None)
            if look + 1 >= LOOKS and len(holders) < LOCATED_MAX:
                break  # these were all members
            sleep(AGAIN_S)
        return None

    def known(self, topic: TopicId, place: LogPlace) -> MemberLog | None:
        """Return the known member that has the log of a place, without a supervisor, if any."""
        known = self._known.get((topic, place.store))
        holder = known and self._client.survey_of(topic, *known, place.offset)
        return holder if holder and has_place(holder.survey, place) else None

    def durable(self, topic: TopicId, bits: int | None = None) -> list[MemberLog]:
        """Return the members that store the topic on disk, the longest log first."""
        holders = [holder for holder in self._survey(topic, bits) if holder.survey.store]
        return sorted(holders, key=lambda each: (-each.survey.durable_end, each.node))

    def first(self, topic: TopicId) -> MemberLog:
        """Return the member with the longest log on disk; raise UnreachableError if none."""
        found = self.durable(topic)
        if not found:
            raise UnreachableError(
                f"no member of {topic!r} keeps its publications on a disk, so a "
                "stream has no offsets to continue from; start a node with a data directory"
            )
        return found[0]

    def place_at(self, topic: TopicId, holder: MemberLog, offset: int) -> LogPlace:
        """Return a place in a member's log with its chain value; raise as ``verified`` does."""
        place = LogPlace(store=holder.survey.store, epoch=holder.survey.epoch, offset=offset)
        survey = verified(self._client, topic, holder.node, holder.address, place)
        return replace(place, chain=survey.chain)

    def has(self, topic: TopicId, holder: MemberLog, place: LogPlace) -> bool:
        """Return True if a member's log has a place; raise UnreachableError without an answer."""
        try:
            verified(self._client, topic, holder.node, holder.address, place)
        except DataLossError:
            return False
        return True

    def entries(self, topic: TopicId, holder: MemberLog, start: int, end: int) -> list[Entry]:
        """Return offset and id of each record in a part of a member's store."""
        survey = holder.survey
        wanted = LogRange(
            store=survey.store, epoch=survey.epoch, start=start, end=end, has_contents=False
        )
        pages = self._client.pages(topic, holder.node, holder.address, wanted)
        offsets = range(start, end)
        return [entry for page in pages for entry in entries(topic, page, offsets)]

    def _survey(
        self, topic: TopicId, bits: int | None = None, offset: int | None = None
    ) -> list[MemberLog]:
        holders = self._client.survey(topic, bits, offset)
        for holder in holders:
            self._known[topic, holder.survey.store] = holder.node, holder.address
        return holders


def has_place(survey: LogInfo, place: LogPlace) -> bool:
    """Return True if a survey at the offset of a place shows the log that contains the place.

    A place without a chain value is accepted if the log is long enough, and so is one below the
    first publication that the topic retains: a read continues there.
    """
    log = LogPlace(store=survey.store, epoch=survey.epoch, offset=survey.durable_end)
    is_unverified = not place.offset or not place.chain or place.offset < survey.low
    has_same = is_unverified or is_same_chain(survey.chain, place.chain)
    return place.is_in_log_of(log) and place.offset <= survey.durable_end and has_same


def expired(survey: LogInfo, offset: int) -> int:
    """Return the number of publications from an offset on that the policy no longer retains.

    A compacted topic has gaps by design: a reader of it misses superseded publications only.
    """
    is_compacted = survey.policy is not None and survey.policy.compact
    return 0 if is_compacted else max(survey.low - offset, 0)


def first_offset(topic: TopicId, survey: LogInfo, offset: int, *, fails_on_data_loss: bool) -> int:
    """Return the first offset to read from an offset on: dropped publications are skipped.

    Raise DataLossError if some of them have expired unread, or log a warning. Offset 0 means all
    that are retained.
    """
    if offset and (count := expired(survey, offset)):
        text = (
            f"{count} publications of {topic!r} from offset {offset} on have expired: the policy "
            f"of the topic ({described(survey.policy)}) retains those from offset {survey.low} on"
        )
        if fails_on_data_loss:
            raise DataLossError(
                f"{text}; set failOnDataLoss to false to continue there, or start again with "
                "another checkpoint"
            )
        _LOG.warning("%s; the read continues there", text)
    return max(offset, survey.low)


def described(policy: Policy | None) -> str:
    """Return the limits of a policy as text."""
    limits = {} if policy is None else asdict(policy)
    names = ("max_age_s", "max_count", "max_bytes")
    given = [f"{name} = {limits[name]}" for name in names if limits.get(name) is not None]
    return ", ".join(given) or "replaced since"


def verified(
    client: RingClient, topic: TopicId, node: NodeId, address: Address, place: LogPlace
) -> LogInfo:
    """Survey a member at a place; raise DataLossError if its log has changed.

    Raise UnreachableError if it does not answer.
    """
    for _ in range(ATTEMPTS):
        holder = client.survey_of(topic, node, address, place.offset)
        if holder is None:
            continue
        if not has_place(holder.survey, place):
            raise DataLossError(
                f"{node} has lost stored publications of {topic!r}, or was restored from a backup, "
                "since the query was planned; run the query again"
            )
        return holder.survey
    raise UnreachableError(f"{node} stopped serving {topic!r} at offset {place.offset}")


class SnapshotSource(Struct, frozen=True):
    """Member to read from, at offsets below its mark."""

    node: NodeId
    address: Address
    store: str
    epoch: int
    mark: int
    departed: int | None = None  # dropped batches at the survey; None without a policy


class Part(Struct, frozen=True):
    """Batches of one prefix, identified by a digest, and the members to read, in order."""

    prefix: int
    digest: bytes
    sources: tuple[SnapshotSource, ...]


def agreed_parts(holders: Sequence[MemberLog]) -> list[Part]:
    """Return a snapshot of a topic as parts with the members that agree; omit empty parts.

    The reference is the member with the most batches; on a tie, the most agreement. Members with
    another charter or other floors are excluded: they retain other publications.
    """
    reference = reference_of(holders)
    holders = [each for each in holders if is_same(each.survey.terms, reference.survey.terms)]
    loads: Counter[NodeId] = Counter()
    parts = []
    for prefix, digest in enumerate(reference.survey.digests):
        if digest:
            alike = [each for each in holders if _digest(each, prefix) == digest]
            alike.sort(key=lambda each: (loads[each.node], each.node))
            loads[alike[0].node] += 1
            sources = tuple(_source(each) for each in alike)
            parts.append(Part(prefix, digest, sources))
    return parts


def reference_of(holders: Sequence[MemberLog]) -> MemberLog:
    """Return the member whose log is the snapshot."""
    return max(holders, key=lambda each: (each.survey.count, _agreement(each, holders)))


def end_of(holder: MemberLog) -> LogPlace:
    """Return the end of a member's log; its chain value is known if all of it is durable."""
    survey = holder.survey
    chain = survey.chain if survey.end == survey.durable_end else b""
    return LogPlace(store=survey.store, epoch=survey.epoch, offset=survey.end, chain=chain)


def _source(holder: MemberLog) -> SnapshotSource:
    survey = holder.survey
    departed = None if survey.policy is None else survey.departed
    return SnapshotSource(
        holder.node, holder.address, survey.store, survey.epoch, survey.end, departed
    )


def is_shared(parts: Sequence[Part]) -> bool:
    """Return True if at least two members have every part."""
    return all(len(part.sources) > 1 for part in parts)


def _agreement(holder: MemberLog, holders: Sequence[MemberLog]) -> int:
    """Return the number of equal digests, over all members and prefixes."""
    digests = holder.survey.digests
    return sum(
        _digest(each, prefix) == digest for each in holders for prefix, digest in enumerate(digests)
    )


def _digest(holder: MemberLog, prefix: int) -> bytes | None:
    digests = holder.survey.digests
    return digests[prefix] if prefix < len(digests) else None
