"""Frames: a stream of bytes cut into pieces of limited size.

A frame is the length of its body in 4 bytes, big-endian, and the body; the first byte of the body
is the frame's kind. What is too long is refused when its first bytes have come, so that a stream
costs no more memory than one frame. Frames that are written together are simply joined.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from skipring.errors import FramingError


class FrameKind(IntEnum):
    """What a frame carries: with the kind come the limit, and the host's order of sending."""

    CONTROL = 0  # what keeps the ring in order
    DATA = 1  # publications and what is said about them


CONTROL: Final = FrameKind.CONTROL
DATA: Final = FrameKind.DATA

# Limit of ours: 1024 short ids with their hops (IHave) are 9 KiB, everything else is shorter.
CONTROL_BYTES_MAX: Final = 16 * 1024
# Limit of ours: a chunk (T14) is 256 KiB as the core counts, where a character is one byte; with
# headers of 4 bytes a character it is 4 times as much. The largest publication has 522 KiB.
DATA_BYTES_MAX: Final = 1024 * 1024

_KINDS: Final = (CONTROL, DATA)
_BYTES_MAX: Final = (CONTROL_BYTES_MAX, DATA_BYTES_MAX)
_LENGTH_MAX: Final = DATA_BYTES_MAX + 1

_HEADER: Final = Layout(">IB")  # the length, and the first byte of the body
_LENGTH: Final = Layout(">I")


class Frame(Struct, frozen=True, gc=False):
    """One frame: its kind, and its body without the byte that says so."""

    kind: FrameKind
    body: bytes


def frame(body: bytes, kind: FrameKind) -> bytes:
    """Write a frame; what nobody would read is not written."""
    if len(body) > _BYTES_MAX[kind]:
        raise FramingError(_too_long(len(body), kind))
    return _HEADER.pack(len(body) + 1, kind) + body


def _too_long(size: int, kind: FrameKind) -> str:
    limit = _BYTES_MAX[kind]
    return f"a {kind.name.lower()} frame of {size} bytes, and {limit} is the limit"


class FrameReader:
    """Cuts what comes over one link into frames.

    After a refusal nothing more can be read: where the next frame begins is not known.
    """

    __slots__ = ("_begun", "_refusal")

    def __init__(self) -> None:
        self._begun = bytearray()  # of the next frame, never as much as a whole one
        self._refusal = ""

    @property
    def buffered_bytes(self) -> int:
        """How much of the next frame is here."""
        return len(self._begun)

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take in what has come; return the frames that it completes.

        Of a chunk with something that is no frame nothing is returned: the link is lost anyway.
        """
        if self._refusal:
            raise FramingError(self._refusal)
        if not self._begun and (whole := _whole(chunk)) is not None:
            return [whole]
        try:
            frames, at = self._finish(chunk)
            at = _cut(chunk, at, frames)
        except FramingError as error:
            self._begun.clear()
            self._refusal = str(error)
            raise
        self._begun += memoryview(chunk)[at:]
        return frames

    def _finish(self, chunk: bytes) -> tuple[list[Frame], int]:
        """The frame that was begun, if the chunk completes it; how much of the chunk was used."""
        frames: list[Frame] = []
        begun, at = self._begun, 0
        while begun and at < len(chunk):  # at most twice: the header, then the rest
            missing = (_size(begun, 0) or _HEADER.size) - len(begun)
            begun += memoryview(chunk)[at : at + missing]
            at = min(at + missing, len(chunk))
            if _size(begun, 0) == len(begun):
                frames.append(Frame(_KINDS[begun[_LENGTH.size]], bytes(begun[_HEADER.size :])))
                begun.clear()
        return frames, at


def _whole(chunk: bytes) -> Frame | None:
    """The frame that a chunk is, if it is exactly one, as most are."""
    if len(chunk) < _HEADER.size:
        return None
    length, kind = _HEADER.unpack_from(chunk)
    if length + _LENGTH.size != len(chunk) or kind >= len(_KINDS) or length > _BYTES_MAX[kind] + 1:
        return None
    return Frame(_KINDS[kind], chunk[_HEADER.size :])


def _cut(chunk: bytes, at: int, frames: list[Frame]) -> int:
    """Cut out all frames that are whole; return where the one begins that is not."""
    while size := _size(chunk, at):
        end = at + size
        if end > len(chunk):
            break
        frames.append(Frame(_KINDS[chunk[at + _LENGTH.size]], chunk[at + _HEADER.size : end]))
        at = end
    return at


def _size(data: bytes | bytearray, at: int) -> int:
    """The size of the frame that begins here; 0 if too little of it has come to say."""
    seen = len(data) - at
    if seen >= _HEADER.size:
        length, kind = _HEADER.unpack_from(data, at)
        _check_length(length)
        if kind >= len(_KINDS):
            raise FramingError(f"a frame of kind {kind}, and there are 0 and 1")
        if length > _BYTES_MAX[kind] + 1:
            raise FramingError(_too_long(length - 1, _KINDS[kind]))
        return _LENGTH.size + int(length)
    if seen == _LENGTH.size:
        _check_length(*_LENGTH.unpack_from(data, at))
    return 0


def _check_length(length: int) -> None:
    if not 1 <= length <= _LENGTH_MAX:
        raise FramingError(f"a frame of {length} bytes, and 1 to {_LENGTH_MAX} are allowed")
