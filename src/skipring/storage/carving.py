"""Packs out of the pages of a SQLite file that SQLite itself cannot read any more.

Only leaves of tables are looked at, and the pages that their rows overflow into; all that leads to
them may be damaged. Nothing found here is believed: a pack says itself what of it is intact.
The format: https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

from collections.abc import Iterator
from io import SEEK_END
from typing import BinaryIO, Final

PAGE_BYTES: Final = 4096  # set when the file is made, so that its header is not needed

_LEAF: Final = b"\x0d"
_LEAF_HEADER_BYTES: Final = 8
_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_SALTS_BYTES: Final = 8
_VARINT_BYTES: Final = 9
_BLOB: Final = 12  # a type of 12 or more, if even, is a blob of (type - 12) / 2 bytes
_ROW_BYTES_MAX: Final = 1 << 26  # Limit of ours: a pack has a few MiB at most.


def carved(file: BinaryIO, wal: bytes) -> Iterator[bytes]:
    """The blobs of all rows (NULL, blob), as far as they can be followed; some come twice."""
    pages = _Pages(file, wal)
    for leaf in pages.leaves():
        for place in _cells(leaf):
            for row in _rows(pages, leaf, place):
                body = _blob(row)
                if body is not None:
                    yield body


class _Pages:
    """The pages of a file under those of its write-ahead log."""

    def __init__(self, file: BinaryIO, wal: bytes) -> None:
        self._file = file
        self._count = file.seek(0, SEEK_END) // PAGE_BYTES
        self._frames = list(_frames(wal))
        self._newest = dict(self._frames)

    def page(self, number: int) -> bytes:
        """A page by its number, from 1; empty if there is none."""
        if number in self._newest:
            return self._newest[number]
        return self._read(number)

    def leaves(self) -> Iterator[bytes]:
        """Pages that may be leaves of tables, older forms of a page too."""
        first = 2  # before it is the schema
        for number in range(first, self._count + 1):
            page = self._read(number)
            if page.startswith(_LEAF):
                yield page
        for number, page in self._frames:
            if number >= first and page.startswith(_LEAF):
                yield page

    def _read(self, number: int) -> bytes:
        if not 0 < number <= self._count:
            return b""
        try:
            self._file.seek((number - 1) * PAGE_BYTES)
            return self._file.read(PAGE_BYTES)
        except OSError:  # a bad sector
            return bytes(PAGE_BYTES)


def _frames(wal: bytes) -> Iterator[tuple[int, bytes]]:
    """Pages in the order in which they were logged; checksums do not matter to us."""
    salts = wal[16 : 16 + _SALTS_BYTES]
    step = _FRAME_HEADER_BYTES + PAGE_BYTES
    for place in range(_WAL_HEADER_BYTES, len(wal) - step + 1, step):
        if wal[place + 8 : place + 8 + _SALTS_BYTES] == salts:
            number = int.from_bytes(wal[place : place + 4], "big")
            yield number, wal[place + _FRAME_HEADER_BYTES : place + step]


def _cells(leaf: bytes) -> Iterator[int]:
    """Where the cells of a leaf begin."""
    count = int.from_bytes(leaf[3:5], "big")
    for place in range(_LEAF_HEADER_BYTES, len(leaf) - 1, 2)[:count]:
        yield int.from_bytes(leaf[place : place + 2], "big")


def _rows(pages: _Pages, leaf: bytes, place: int) -> Iterator[bytes]:
    """The row in a cell: as its pages say where it goes on, and as they lie one after another.

    The two differ if the way leads elsewhere, or nowhere: rarely, unless it is damaged.
    """
    size, place = _varint(leaf, place)
    _, place = _varint(leaf, place)  # the number of the row
    if size > _ROW_BYTES_MAX:
        return
    local = _local_bytes(size)
    start = leaf[place : place + local]
    first = int.from_bytes(leaf[place + local : place + local + 4], "big")
    count = -(-(size - local) // (PAGE_BYTES - 4))
    said = list(_way(pages, first, count))
    straight = list(range(first, first + count))
    for way in (said, straight) if said != straight else (said,):
        yield b"".join((start, *(pages.page(number)[4:] for number in way)))[:size]


def _way(pages: _Pages, first: int, count: int) -> Iterator[int]:
    """The numbers of the pages over which a row goes on."""
    number = first
    for _ in range(count):
        yield number
        number = int.from_bytes(pages.page(number)[:4], "big")


def _local_bytes(size: int) -> int:
    """How much of a row is in its leaf."""
    most, least = PAGE_BYTES - 35, (PAGE_BYTES - 12) * 32 // 255 - 23
    if size <= most:
        return size
    local = least + (size - least) % (PAGE_BYTES - 4)
    return local if local <= most else least


def _blob(row: bytes) -> bytes | None:
    """The blob of a row (NULL, blob); None for other rows."""
    header_bytes, place = _varint(row, 0)
    first, place = _varint(row, place)
    second, place = _varint(row, place)
    if place != header_bytes or first != 0 or second < _BLOB or second % 2:
        return None
    return row[place : place + (second - _BLOB) // 2]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of SQLite's, and the place after it; zeros follow where the data end."""
    value = 0
    for count, byte in enumerate(data[place : place + _VARINT_BYTES], 1):
        if count == _VARINT_BYTES:
            return value << 8 | byte, place + count
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  (the bit that says that more follows)
            return value, place + count
    return value, len(data)
