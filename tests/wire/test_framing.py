"""Framing: a stream of bytes cut into frames of limited size."""

import tracemalloc
from collections.abc import Iterator
from random import Random
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from skipring.errors import FramingError
from skipring.wire.framing import (
    CONTROL,
    CONTROL_BYTES_MAX,
    DATA,
    DATA_BYTES_MAX,
    Frame,
    FrameReader,
    frame,
)
from tests.support.machines import unhurried

HEADER_BYTES = 5


def frames() -> SearchStrategy[Frame]:
    return st.builds(Frame, st.sampled_from([CONTROL, DATA]), st.binary(max_size=40))


def written(given: Frame) -> bytes:
    return frame(given.body, given.kind)


def read_in_pieces(data: bytes, sizes: list[int]) -> list[Frame]:
    """Return the frames of bytes that arrive in pieces of these sizes, then in one piece."""
    reader, found, at = FrameReader(), [], 0
    for size in [*sizes, len(data)]:
        found += reader.feed(data[at : at + size])
        at += size
    assert reader.buffered_bytes == 0
    return found


# -- round trips -----------------------------------------------------------------------------


def test_frame_is_length_kind_and_body() -> None:
    assert frame(b"abc", CONTROL).hex() == "0000000400616263"
    assert frame(b"", DATA).hex() == "0000000101"


@unhurried
@given(st.lists(frames(), max_size=12), st.lists(st.integers(0, 30), max_size=40))
def test_frames_survive_any_division_of_the_bytes(sent: list[Frame], sizes: list[int]) -> None:
    assert read_in_pieces(b"".join(map(written, sent)), sizes) == sent


@unhurried
@given(st.lists(frames(), max_size=6))
def test_frame_is_returned_with_its_last_byte(sent: list[Frame]) -> None:
    reader = FrameReader()
    for each in sent:
        *early, last = (bytes((byte,)) for byte in written(each))
        assert [reader.feed(byte) for byte in early] == [[]] * len(early)
        assert reader.feed(last) == [each]


@pytest.mark.parametrize(
    ("kind", "size"),
    [(CONTROL, CONTROL_BYTES_MAX), (DATA, DATA_BYTES_MAX)],
    ids=["control", "data"],
)
def test_frame_of_the_maximum_length_is_read(kind: Frame, size: int) -> None:
    longest = Frame(kind, b"x" * size)
    assert FrameReader().feed(written(longest)) == [longest]
    assert read_in_pieces(written(longest) * 2, [3, 1000, size - 5]) == [longest] * 2


@pytest.mark.parametrize("seed", range(20))
def test_long_frames_survive_alternating_long_and_short_pieces(seed: int) -> None:
    rng = Random(seed)
    sent = [Frame(DATA, rng.randbytes(rng.choice((0, 9, 5000, 90_000)))) for _ in range(12)]
    pieces = [rng.choice((1, 4, 7, 4095, 4096, 4097, 60_000)) for _ in range(400)]
    assert read_in_pieces(b"".join(map(written, sent)), pieces) == sent


# -- refusals --------------------------------------------------------------------------------

REFUSED = {
    "an empty frame": bytes.fromhex("00000000"),
    "an oversize frame of any kind": bytes.fromhex("00100002"),
    "the beginning of an HTTP request": b"GET ",
    "the beginning of a TLS handshake": bytes.fromhex("16030102"),
    "a control frame of 16 KiB and a byte": bytes.fromhex("0000400200"),
    "a bundle of 16 KiB and a byte": bytes.fromhex("0000400202"),
    "a frame of kind 3": bytes.fromhex("0000000503"),
    "a frame of kind 255": bytes.fromhex("00000005ff"),
}


@pytest.mark.parametrize("start", REFUSED.values(), ids=REFUSED)
def test_invalid_frame_is_refused_after_its_header(start: bytes) -> None:
    reader = FrameReader()
    assert reader.feed(start[:-1]) == []
    with pytest.raises(FramingError, match=r"^a .*frame of ") as refused:
        reader.feed(start[-1:])
    with pytest.raises(FramingError) as at_once:
        FrameReader().feed(start + b"x" * 10)
    assert str(at_once.value) == str(refused.value)
    assert len(str(refused.value)) < 80


@pytest.mark.parametrize("start", REFUSED.values(), ids=REFUSED)
def test_refused_stream_is_not_read_further(start: bytes) -> None:
    reader = FrameReader()
    with pytest.raises(FramingError):
        reader.feed(frame(b"good", CONTROL) + start)
    with pytest.raises(FramingError):
        reader.feed(frame(b"good", CONTROL))
    assert reader.buffered_bytes == 0


def test_oversize_frame_is_not_written() -> None:
    with pytest.raises(FramingError, match="a control frame of 16385 bytes exceeds the limit"):
        frame(bytes(CONTROL_BYTES_MAX + 1), CONTROL)
    with pytest.raises(FramingError, match="a data frame of 1048577 bytes exceeds the limit"):
        frame(bytes(DATA_BYTES_MAX + 1), DATA)


@unhurried
@given(st.lists(st.binary(max_size=50), max_size=20))
def test_arbitrary_bytes_are_frames_or_refused(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            reader.feed(chunk)
    except FramingError:
        assert reader.buffered_bytes == 0


# -- cost ------------------------------------------------------------------------------------


def test_at_most_one_frame_is_buffered() -> None:
    reader, data = FrameReader(), frame(bytes(DATA_BYTES_MAX), DATA)
    piece = 64 * 1024
    tracemalloc.start()
    try:
        for start in [*range(0, len(data), piece)] * 4:
            reader.feed(data[start : start + piece])
            assert reader.buffered_bytes < DATA_BYTES_MAX + HEADER_BYTES
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * DATA_BYTES_MAX  # the buffered bytes and the frame cut out of them


def kept_bytes(chunks: Iterator[bytes]) -> int:
    """Return the memory of a reader after chunks of which it keeps the last."""
    reader = FrameReader()
    tracemalloc.start()
    try:
        for chunk in chunks:
            reader.feed(chunk)
        del chunk
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_frame_read_byte_by_byte_takes_only_its_size() -> None:
    data = frame(bytes(100_000), DATA)[:-1]
    assert kept_bytes(bytes((byte,)) for byte in data) < 2 * len(data)


def test_long_chunk_is_not_kept_for_a_short_rest() -> None:
    data = frame(bytes(200_000), DATA) + frame(bytes(1000), DATA)[:-1]
    assert kept_bytes(bytes(bytearray(data)) for _ in range(1)) < 20_000


def seconds(data: bytes, step: int) -> float:
    reader, start = FrameReader(), process_time()
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    return process_time() - start


@pytest.mark.parametrize(
    ("body_bytes", "count", "step"),
    [(20_000, 1, 1), (0, 4000, 10**9)],
    ids=["byte by byte", "many in one chunk"],
)
def test_reading_takes_linear_time(body_bytes: int, count: int, step: int) -> None:
    factor = 8  # quadratic time would be 64 times as long
    small = frame(bytes(body_bytes), DATA) * count
    large = frame(bytes(factor * body_bytes), DATA) * (count * (1 if body_bytes else factor))
    assert min(seconds(large, step) for _ in range(2)) < 3 * factor * max(
        min(seconds(small, step) for _ in range(3)), 1e-3
    )
