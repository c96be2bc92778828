"""Framing: division of a byte stream into frames of limited size.

A frame is the length of its body in 4 bytes, big-endian, and the body; the first byte of the body
is the kind of the frame. The reader refuses an oversized frame at its first bytes, so a stream uses
no more memory than one frame. Frames that are written together are concatenated.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from skipring.errors import FramingError


class FrameKind(IntEnum):
    """Content of a frame; the kind determines its size limit and the host's send order."""

    CONTROL = 0  # messages that maintain the ring
    DATA = 1  # publications and messages about them
    BUNDLE = 2  # small control messages of several topics


CONTROL: Final = FrameKind.CONTROL
DATA: Final = FrameKind.DATA
BUNDLE: Final = FrameKind.BUNDLE

# Chosen limit: 1024 short ids with their hops (IHave) are 9 KiB, everything else is shorter.
CONTROL_BYTES_MAX: Final = 16 * 1024
# Chosen limit: a chunk (T14) is 256 KiB as the core counts, where a character is one byte; with
# headers of 4 bytes a character it is 4 times that size. The largest publication has 522 KiB.
DATA_BYTES_MAX: Final = 1024 * 1024

_KINDS: Final = (CONTROL, DATA, BUNDLE)
_BYTES_MAX: Final = (CONTROL_BYTES_MAX, DATA_BYTES_MAX, CONTROL_BYTES_MAX)
_LENGTH_MAX: Final = DATA_BYTES_MAX + 1

_HEADER: Final = Layout(">IB")  # the length, and the first byte of the body
_LENGTH: Final = Layout(">I")
# Guess: shorter pieces are copied, because they may arrive byte by byte. So is a piece of less than
# half of a chunk: a view would keep the whole chunk in memory.
_PIECE_BYTES_MIN: Final = 4096


class Frame(Struct, frozen=True, gc=False):
    """One frame: its kind, and its body without the byte of the kind."""

    kind: FrameKind
    body: bytes


def frame(body: bytes, kind: FrameKind) -> bytes:
    """Encode a frame; raise FramingError for a body that readers would refuse."""
    if len(body) > _BYTES_MAX[kind]:
        raise FramingError(_too_long(len(body), kind))
    return _HEADER.pack(len(body) + 1, kind) + body


def _too_long(size: int, kind: FrameKind) -> str:
    limit = _BYTES_MAX[kind]
    return f"a {kind.name.lower()} frame of {size} bytes exceeds the limit of {limit}"


class FrameReader:
    """Parser that cuts the bytes of one connection into frames.

    After a refusal it cannot continue: the start of the next frame is unknown.
    """

    __slots__ = ("_begun", "_header", "_refusal", "buffered_bytes")

    def __init__(self) -> None:
        self.buffered_bytes = 0  # received bytes of the next frame
        self._header = b""  # of the next frame, until it is complete
        self._begun: _Begun | None = None  # the next frame, once its header is complete
        self._refusal = ""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Add received bytes; return the frames that they complete.

        If a chunk contains an invalid frame, return none of its frames: the connection is lost
        anyway.
        """
        if self._refusal:
            raise FramingError(self._refusal)
        frames: list[Frame] = []
        at, begun = 0, self._begun
        if begun is not None:
            at = begun.append(chunk, 0)
            if begun.missing:
                self.buffered_bytes += len(chunk)
                return frames
            frames.append(begun.frame())
        elif self._header:
            chunk = self._header + chunk
        self._header, self._begun, self.buffered_bytes = b"", None, 0
        try:
            self._begin(chunk, _cut(chunk, at, frames))
        except FramingError as error:
            self._refusal = str(error)
            raise
        return frames

    def _begin(self, chunk: bytes, at: int) -> None:
        """Buffer the rest of a chunk, which is less than a frame."""
        size = _size(chunk, at)
        self.buffered_bytes = len(chunk) - at
        if size:
            kind = _KINDS[chunk[at + _LENGTH.size]]
            self._begun = _Begun(kind, size - _HEADER.size)
            self._begun.append(chunk, at + _HEADER.size)
        else:
            self._header = chunk[at:]


class _Begun:
    """Incomplete frame.

    Its body is joined once, when it is complete, so a long body is copied only once.
    """

    __slots__ = ("_kind", "_pieces", "missing", "size_bytes")

    def __init__(self, kind: FrameKind, missing: int) -> None:
        self._kind = kind
        self.missing = missing  # bytes
        self.size_bytes = 0  # bytes received
        self._pieces: list[bytearray | memoryview] = []

    def append(self, chunk: bytes, at: int) -> int:
        """Add the bytes of a chunk that belong to the frame; return where they end."""
        part, pieces = memoryview(chunk)[at : at + self.missing], self._pieces
        if len(part) >= _PIECE_BYTES_MIN and 2 * len(part) >= len(chunk):
            pieces.append(part)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += part
        else:
            pieces.append(bytearray(part))
        self.missing -= len(part)
        self.size_bytes += len(part)
        return at + len(part)

    def frame(self) -> Frame:
        """Return the frame once it is complete."""
        return Frame(self._kind, b"".join(self._pieces))


def whole_frame(chunk: bytes) -> Frame | None:
    """Return the frame if a chunk is exactly one valid frame, which is the usual case."""
    size = len(chunk)
    if size < _HEADER.size:
        return None
    length, kind = _HEADER.unpack_from(chunk)
    if length + _LENGTH.size != size or kind >= len(_KINDS) or length > _BYTES_MAX[kind] + 1:
        return None
    return Frame(_KINDS[kind], chunk[_HEADER.size :])


def _cut(chunk: bytes, at: int, frames: list[Frame]) -> int:
    """Cut out all complete frames; return the start of the incomplete one."""
    while size := _size(chunk, at):
        end = at + size
        if end > len(chunk):
            break
        frames.append(Frame(_KINDS[chunk[at + _LENGTH.size]], chunk[at + _HEADER.size : end]))
        at = end
    return at


def _size(data: bytes, at: int) -> int:
    """Return the size of the frame at a place; 0 if its header is incomplete."""
    seen = len(data) - at
    if seen >= _HEADER.size:
        length, kind = _HEADER.unpack_from(data, at)
        _check_length(length)
        if kind >= len(_KINDS):
            raise FramingError(f"a frame of unknown kind {kind}")
        if length > _BYTES_MAX[kind] + 1:
            raise FramingError(_too_long(length - 1, _KINDS[kind]))
        return _LENGTH.size + int(length)
    if seen == _LENGTH.size:
        _check_length(*_LENGTH.unpack_from(data, at))
    return 0


def _check_length(length: int) -> None:
    if not 1 <= length <= _LENGTH_MAX:
        raise FramingError(f"a frame of {length} bytes; 1 to {_LENGTH_MAX} are allowed")
