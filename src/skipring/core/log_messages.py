"""Messages to read the log of a node: for the backfill of a new member, and for clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.batches import BATCH_PART, RecordBatch
from skipring.core.limits import (
    CHAIN_BYTES,
    FILTER_VALUES_MAX,
    KEY_BYTES_MAX,
    NODE_PATTERN,
    NUMBER_MAX,
    PRINTABLE,
    REASON_CHARACTERS_MAX,
    STORE_CHARACTERS_MAX,
    STORED_MAX,
    SURVEY_BITS_MAX,
    SURVEY_PREFIX_MAX,
    TERMS_BYTES,
)
from skipring.core.publications import ID_BYTES
from skipring.core.retention.charter import Policy
from skipring.core.summaries import DIGEST_BYTES
from skipring.core.trie import Offset

# Reasons in a Refused that clients match on.
NOT_A_MEMBER: Final = "not a member of the topic"
BEHIND: Final = "it is reading its log; try again"
ANOTHER_STORE: Final = "another store by now"
DEPARTED: Final = "it has dropped batches since the survey"

Number: TypeAlias = Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="0 to 2^63-1")]
SurveyBits: TypeAlias = Annotated[
    int, Meta(ge=0, le=SURVEY_BITS_MAX, description=f"0 to {SURVEY_BITS_MAX}")
]
SurveyPrefix: TypeAlias = Annotated[
    int, Meta(ge=0, le=SURVEY_PREFIX_MAX, description=f"0 to {SURVEY_PREFIX_MAX}")
]
Name: TypeAlias = Annotated[str, Meta(pattern=rf"\A{NODE_PATTERN}\Z")]
FilterRange: TypeAlias = tuple[Number, Number]
Reason: TypeAlias = Annotated[
    str, Meta(max_length=REASON_CHARACTERS_MAX, pattern=PRINTABLE, description="text")
]
StoreId: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"\A[0-9a-f]{{0,{STORE_CHARACTERS_MAX}}}\Z",
        description="hexadecimal digits, or none",
    ),
]
Offsets: TypeAlias = Annotated[
    tuple[Offset, ...], Meta(max_length=STORED_MAX, description="0 to 2^40-1, each")
]
StoredBatches: TypeAlias = Annotated[
    tuple[RecordBatch, ...], Meta(max_length=STORED_MAX, description="batches, with ids")
]
SurveyDigests: TypeAlias = Annotated[
    tuple[Annotated[bytes, Meta(max_length=DIGEST_BYTES)], ...],
    Meta(max_length=1 << SURVEY_BITS_MAX, description=f"{DIGEST_BYTES} bytes or none, each"),
]
ChainValue: TypeAlias = Annotated[
    bytes, Meta(max_length=CHAIN_BYTES, description=f"{CHAIN_BYTES} bytes or none")
]

TermsDigest: TypeAlias = Annotated[
    bytes, Meta(max_length=TERMS_BYTES, description=f"{TERMS_BYTES} bytes or none")
]


class Refused(Struct, frozen=True, array_like=True, gc=False, tag=72):
    """Refusal of a request, with the reason in one sentence."""

    request: Number
    reason: Reason


class GetLogInfo(Struct, frozen=True, array_like=True, gc=False, tag=81):
    """Request for the extent and digests of a node's log; answered by LogInfo or Refused.

    With ``bits`` the answer has the digests of all 2^``bits`` prefixes of ids, else none. It has
    the chain value at ``offset``, or at the durable mark.
    """

    request: Number
    bits: SurveyBits | None
    offset: Offset | None


class LogInfo(Struct, frozen=True, array_like=True, gc=False, tag=82):
    """Extent of the sender's log: ``count`` batches at offsets below ``end``, with digests.

    Offsets are those of its ``store`` in this ``epoch``; below ``durable_end`` they are on its
    disk. A node without a disk has no store. A prefix without ids has an empty digest. The value
    ``chain`` depends on all ids before the requested offset and on their order; it is empty if the
    offset is beyond ``durable_end``, or without a disk. ``terms`` is that of CheckTrie. The batches
    that end at or below ``low`` were dropped under the topic's ``policy``;
    ``departed`` is the number of all dropped batches since the node has started.
    """

    request: Number
    store: StoreId
    epoch: Number
    durable_end: Offset
    end: Offset
    count: Number
    digests: SurveyDigests
    chain: ChainValue
    terms: TermsDigest = b""
    low: Offset = 0
    policy: Annotated[Policy, Meta(description="limits by name")] | None = None
    departed: Number = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a digest or a chain value that is neither empty nor complete."""
        if any(len(digest) not in (0, DIGEST_BYTES) for digest in self.digests):
            message = f"a digest must be empty or have {DIGEST_BYTES} bytes"
            raise ValueError(message)
        if len(self.chain) not in (0, CHAIN_BYTES):
            message = f"a chain value must be empty or have {CHAIN_BYTES} bytes"
            raise ValueError(message)


class FetchLog(Struct, frozen=True, array_like=True, gc=False, tag=83):
    """Request for a node's log: the paper's CheckAndPublish with nothing to compare.

    It requests batches with records at offsets from ``start`` to before ``end`` whose ids begin
    with the ``bits`` bits of ``prefix``; without ``contents``, the batches have no body. The
    offsets are those of a ``store`` in an ``epoch``: a node with another store or epoch refuses.
    Without a store, the request is for any store. With ``by_publisher``, the bits are those of the
    tags of publishers: all batches of a publisher are under one prefix. With ``departed``, it
    requests the batches that were dropped after this number of others instead of stored ones: a
    snapshot contains them. They arrive in the order in which they were dropped, and ``next`` of
    the answer is the next value of ``departed``. With ``indexed``, it requests only batches that
    the digests of LogInfo contain: a node omits those in quarantine. Answered by LogPage or
    Refused.
    """

    request: Number
    store: StoreId
    epoch: Number
    start: Offset
    end: Offset
    bits: SurveyBits
    prefix: SurveyPrefix
    contents: bool
    by_publisher: bool = False
    departed: Number | None = None
    indexed: bool = False


class RecordFilter(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Properties of the records that a reader requests; None: any.

    Ranges contain both of their numbers. A range of times excludes records without a time;
    ``keys`` excludes those without a key.
    """

    publishers: (
        Annotated[tuple[Name, ...], Meta(max_length=FILTER_VALUES_MAX, description="nodes")] | None
    ) = None
    keys: (
        Annotated[
            tuple[Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)], ...],
            Meta(max_length=FILTER_VALUES_MAX, description="keys"),
        ]
        | None
    ) = None
    times: FilterRange | None = None
    sequence: FilterRange | None = None
    id_start: Annotated[bytes, Meta(max_length=ID_BYTES, description="bytes")] = b""

    def includes(self, batch: RecordBatch) -> bool:
        """Return True if records of a batch may be wanted, as far as its other fields show."""
        part = min(len(self.id_start), BATCH_PART)
        return (
            (self.publishers is None or batch.publisher in self.publishers)
            and batch.id[:part] == self.id_start[:part]
            and (
                self.sequence is None
                or (batch.first <= self.sequence[1] and self.sequence[0] < batch.end)
            )
        )

    def record_test(self) -> Callable[[int, bytes | None], bool] | None:
        """Return a function that tests the time and the key of a record; None if any will do."""
        if self.keys is None and self.times is None:
            return None
        keys = None if self.keys is None else frozenset(self.keys)
        first, last = self.times or (0, NUMBER_MAX)
        earliest = first if self.times is None else max(first, 1)  # 0: no time is known

        def includes(time: int, key: bytes | None) -> bool:
            return earliest <= time <= last and (keys is None or key in keys)

        return includes


class FetchRecords(Struct, frozen=True, array_like=True, gc=False, tag=94):
    """Request of a client for the batches with wanted records: FetchLog with a filter.

    The node omits batches without a wanted record. Without ``payloads``, the records of a body
    have empty payloads, so the body does not match the id. Answered by LogPage or Refused.
    """

    request: Number
    store: StoreId
    epoch: Number
    start: Offset
    end: Offset
    bits: SurveyBits
    prefix: SurveyPrefix
    payloads: bool
    where: Annotated[
        RecordFilter, Meta(description="[publishers, keys, times, sequence, id_start]")
    ] = RecordFilter()
    departed: Number | None = None
    indexed: bool = False


class LogPage(Struct, frozen=True, array_like=True, gc=False, tag=84):
    """Part of a log in the order of its offsets; the rest starts at ``next``.

    Each batch has the offset of its first record. The receiver verifies the ids (T10).
    """

    request: Number
    next: Offset | None
    offsets: Offsets
    batches: StoredBatches

    def __post_init__(self) -> None:
        """Raise ValueError unless each batch has an offset."""
        if len(self.offsets) != len(self.batches):
            message = f"{len(self.offsets)} offsets with {len(self.batches)} batches"
            raise ValueError(message)
