"""Log messages: values that msgspec refuses on decode."""

from __future__ import annotations

import pytest
from msgspec import ValidationError
from msgspec.msgpack import decode, encode
from msgspec.structs import replace

from skipring.core.log_messages import FetchLog, LogInfo, LogPage, Refused
from tests.support.batches import batch, batch_of


def test_complete_log_info_survives_a_round_trip() -> None:
    info = LogInfo(1, "5eed", 2, 3, 4, 4, (bytes(16), b""), bytes(12))
    assert decode(encode(info), type=LogInfo) == info


@pytest.mark.parametrize(
    ("digests", "chain"), [((b"x",), b""), ((), b"x"), ((bytes(17),), b""), ((), bytes(9))]
)
def test_digest_or_chain_value_of_another_length_is_refused(
    digests: tuple[bytes, ...], chain: bytes
) -> None:
    with pytest.raises(ValueError, match=r"digest|chain|length"):
        decode(encode([82, 1, "", 0, 0, 0, 0, digests, chain]), type=LogInfo)


def test_page_survives_a_round_trip_with_the_ids_of_its_batches() -> None:
    page = LogPage(1, 9, (4, 7), (batch_of(b"x", b"y"), replace(batch(first=2), body=b"")))
    assert decode(encode(page), type=LogPage) == page


@pytest.mark.parametrize("offsets", [(), (1, 2)])
def test_page_with_another_number_of_offsets_than_batches_is_refused(
    offsets: tuple[int, ...],
) -> None:
    with pytest.raises(ValueError, match=f"{len(offsets)} offsets with 1 batches"):
        decode(encode([84, 1, None, offsets, [batch()]]), type=LogPage)


@pytest.mark.parametrize(
    "change", [{"id": b"x" * 31}, {"id": b""}, {"count": 0}, {"first": -1}], ids=str
)
def test_page_with_a_batch_out_of_range_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        decode(encode([84, 1, None, [0], [replace(batch(), **change)]]), type=LogPage)


@pytest.mark.parametrize(("bits", "prefix"), [(9, 0), (-1, 0), (8, 256), (0, -1)])
def test_prefix_beyond_8_bits_is_refused(bits: int, prefix: int) -> None:
    with pytest.raises(ValidationError):
        decode(encode([83, 1, "", 0, 0, 1, bits, prefix, True]), type=FetchLog)


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 501])
def test_reason_is_one_short_line(reason: str) -> None:
    with pytest.raises(ValidationError):
        decode(encode([72, 1, reason]), type=Refused)
