"""Scan for segments in SQLite pages that SQLite cannot read.

It reads leaf pages of tables and their overflow pages only, because every other page may be
damaged. A segment verifies itself. The format: https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import SEEK_END
from typing import BinaryIO, Final

# Page size of new files. Measured: with pages of 4 KiB the commits of a history take 50 % more
# processor time; with pages of 32 KiB the commit of a single publication takes 10 % more.
PAGE_BYTES: Final = 16 * 1024
SMALL_PAGE_BYTES: Final = 4096  # page size of older files
PAGE_SIZES: Final = (PAGE_BYTES, SMALL_PAGE_BYTES)

_SIZE_AT: Final = 16
_LEAF: Final = b"\x0d"
_TREES: Final = (_LEAF, b"\x05", b"\x0a", b"\x02")  # first bytes of table and index pages
_LEAF_HEADER_BYTES: Final = 8
_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_SALTS_BYTES: Final = 8
_VARINT_BYTES: Final = 9
_BLOB: Final = 12  # a type of 12 or more, if even, is a blob of (type - 12) / 2 bytes
_ROW_BYTES_MAX: Final = 1 << 26  # Limit: a segment has a few MiB at most.


def carved(file: BinaryIO, wal: bytes, page_bytes: int) -> Iterator[bytes]:
    """Yield the blobs of all rows (NULL, blob) whose pages are found; some occur twice."""
    pages = _Pages(file, wal, page_bytes)
    for leaf in pages.leaves():
        for place in _cells(leaf):
            for row in _rows(pages, leaf, place):
                body = _blob(row)
                if body is not None:
                    yield body


def page_sizes(file: BinaryIO, wal: bytes) -> Counter[int]:
    """Return the possible page sizes, each with the number of sources that state it.

    Try them one after the other until segments are found, never together: a publisher may choose
    the bytes in the middle of a page, and could make them look like a page.
    """
    said = (
        int.from_bytes(_read_at(file, _SIZE_AT, 2), "big"),
        int.from_bytes(wal[8:12], "big"),
        # The second page is the root of a table. In larger pages this place is empty: SQLite
        # writes the schema from the end of its page, and no peer influences its content.
        SMALL_PAGE_BYTES if _read_at(file, SMALL_PAGE_BYTES, 1) in _TREES else PAGE_BYTES,
    )
    votes = Counter(dict.fromkeys(PAGE_SIZES, 0))
    votes.update(size for size in said if size in votes)
    return votes


def _read_at(file: BinaryIO, place: int, size: int) -> bytes:
    try:
        file.seek(place)
        return file.read(size)
    except OSError:  # a bad sector
        return b""


class _Pages:
    """Pages of a file, overlaid by those of its write-ahead log."""

    def __init__(self, file: BinaryIO, wal: bytes, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._file = file
        self._count = file.seek(0, SEEK_END) // page_bytes
        self._frames = list(_frames(wal, page_bytes))
        self._newest = dict(self._frames)

    def page(self, number: int) -> bytes:
        """Return a page by its number, from 1; empty if there is none."""
        if number in self._newest:
            return self._newest[number]
        return self._read(number)

    def leaves(self) -> Iterator[bytes]:
        """Yield pages that may be leaves of tables, also older versions of a page."""
        first = 2  # page 1 is the schema
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
            self._file.seek((number - 1) * self.page_bytes)
            return self._file.read(self.page_bytes)
        except OSError:  # a bad sector
            return bytes(self.page_bytes)


def _frames(wal: bytes, page_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield pages in the order of the log, without a check: segments verify themselves."""
    salts = wal[16 : 16 + _SALTS_BYTES]
    step = _FRAME_HEADER_BYTES + page_bytes
    for place in range(_WAL_HEADER_BYTES, len(wal) - step + 1, step):
        if wal[place + 8 : place + 8 + _SALTS_BYTES] == salts:
            number = int.from_bytes(wal[place : place + 4], "big")
            yield number, wal[place + _FRAME_HEADER_BYTES : place + step]


def _cells(leaf: bytes) -> Iterator[int]:
    """Yield the offsets of the cells of a leaf."""
    count = int.from_bytes(leaf[3:5], "big")
    for place in range(_LEAF_HEADER_BYTES, len(leaf) - 1, 2)[:count]:
        yield int.from_bytes(leaf[place : place + 2], "big")


def _rows(pages: _Pages, leaf: bytes, place: int) -> Iterator[bytes]:
    """Yield the row in a cell, by its chain of overflow pages and by consecutive pages.

    The two differ rarely, unless the chain is damaged.
    """
    size, place = _varint(leaf, place)
    _, place = _varint(leaf, place)  # row id
    if size > _ROW_BYTES_MAX:
        return
    local = _local_bytes(size, pages.page_bytes)
    start = leaf[place : place + local]
    first = int.from_bytes(leaf[place + local : place + local + 4], "big")
    count = -(-(size - local) // (pages.page_bytes - 4))
    said = list(_way(pages, first, count))
    straight = list(range(first, first + count))
    for way in (said, straight) if said != straight else (said,):
        yield b"".join((start, *(pages.page(number)[4:] for number in way)))[:size]


def _way(pages: _Pages, first: int, count: int) -> Iterator[int]:
    """Yield the page numbers of a row's overflow chain."""
    number = first
    for _ in range(count):
        yield number
        number = int.from_bytes(pages.page(number)[:4], "big")


def _local_bytes(size: int, page_bytes: int) -> int:
    """Return the number of bytes of a row that are in its leaf."""
    most, least = page_bytes - 35, (page_bytes - 12) * 32 // 255 - 23
    if size <= most:
        return size
    local = least + (size - least) % (page_bytes - 4)
    return local if local <= most else least


def _blob(row: bytes) -> bytes | None:
    """Return the blob of a row (NULL, blob); None for other rows."""
    header_bytes, place = _varint(row, 0)
    first, place = _varint(row, place)
    second, place = _varint(row, place)
    if place != header_bytes or first != 0 or second < _BLOB or second % 2:
        return None
    return row[place : place + (second - _BLOB) // 2]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a varint of SQLite and the offset after it; a short read ends the number."""
    value = 0
    for count, byte in enumerate(data[place : place + _VARINT_BYTES], 1):
        if count == _VARINT_BYTES:
            return value << 8 | byte, place + count
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  (the continuation bit)
            return value, place + count
    return value, len(data)
