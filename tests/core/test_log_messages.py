"""Log messages: values that msgspec refuses on decode."""

from __future__ import annotations

import pytest
from msgspec import ValidationError
from msgspec.msgpack import decode, encode

from skipring.core.log_messages import FetchLog, LogInfo, Refused


def test_complete_log_info_survives_a_round_trip() -> None:
    info = LogInfo(1, "5eed", 2, 3, 4, 4, (bytes(16), b""), bytes(8))
    assert decode(encode(info), type=LogInfo) == info


@pytest.mark.parametrize(
    ("digests", "chain"), [((b"x",), b""), ((), b"x"), ((bytes(17),), b""), ((), bytes(9))]
)
def test_digest_or_chain_value_of_another_length_is_refused(
    digests: tuple[bytes, ...], chain: bytes
) -> None:
    with pytest.raises(ValueError, match=r"digest|chain|length"):
        decode(encode([82, 1, "", 0, 0, 0, 0, digests, chain]), type=LogInfo)


@pytest.mark.parametrize(("bits", "prefix"), [(9, 0), (-1, 0), (8, 256), (0, -1)])
def test_prefix_beyond_8_bits_is_refused(bits: int, prefix: int) -> None:
    with pytest.raises(ValidationError):
        decode(encode([83, 1, "", 0, 0, 1, bits, prefix, True]), type=FetchLog)


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 501])
def test_reason_is_one_short_line(reason: str) -> None:
    with pytest.raises(ValidationError):
        decode(encode([72, 1, reason]), type=Refused)
