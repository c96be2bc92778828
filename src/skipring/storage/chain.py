"""Running digest over the ids of one topic's log, in the order of their offsets (decision 0043).

The digest works in blocks of 64 ids: C(0) is zeros, C(k) = H(C(k-1) || ids of block k). The value
at offset n is the first 8 bytes of H(C(n // 64) || ids from 64 * (n // 64) to n). It depends on
every id before n and on their order, not on segment boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from skipring.core.limits import CHAIN_BYTES
from skipring.core.publications import ID_BYTES

BLOCK_IDS: Final = 64  # Guess: 0.5 bytes of memory for a publication, 63 ids read for a value.
LOST_ID: Final = bytes(ID_BYTES)  # stands for the unknown id of a lost publication

_DIGEST_BYTES: Final = 32
_BLOCK_BYTES: Final = BLOCK_IDS * ID_BYTES
_HALF_BYTES: Final = _BLOCK_BYTES // 2
_START: Final = bytes(_DIGEST_BYTES)
_HASH: Final = blake2b(digest_size=_DIGEST_BYTES, person=b"skipring chain")


class LogChain:
    """Digests C(k) of a log, and the ids after the last of them."""

    __slots__ = ("_digests", "_rest")

    def __init__(self) -> None:
        self._digests = bytearray()  # C(1), C(2), ...
        self._rest = bytearray()  # ids of the last block, which is not full

    @property
    def end(self) -> int:
        """Return the offset after the last id."""
        return len(self._digests) // _DIGEST_BYTES * BLOCK_IDS + len(self._rest) // ID_BYTES

    @property
    def size_bytes(self) -> int:
        """Return the memory that digests and ids use."""
        return len(self._digests) + len(self._rest)

    def extend(self, ids: bytes | bytearray | memoryview) -> None:
        """Append consecutive ids."""
        rest = self._rest
        rest += ids
        if len(rest) < _BLOCK_BYTES:
            return
        whole = len(rest) // _BLOCK_BYTES * _BLOCK_BYTES
        digest = self._digest(len(self._digests) // _DIGEST_BYTES)
        with memoryview(rest) as view:
            for begin in range(0, whole, _BLOCK_BYTES):
                digest = _hashed(digest, view[begin : begin + _BLOCK_BYTES])
                self._digests += digest
        del rest[:whole]

    def at(self, offset: int, ids_between: Callable[[int, int], bytes]) -> bytes:
        """Return the value at an offset up to the end.

        ``ids_between`` returns the ids from one offset to before another. It is called for at most
        63 ids, never for ids of the last block.
        """
        assert 0 <= offset <= self.end, f"offset {offset} beyond {self.end}"
        block = offset // BLOCK_IDS
        start = BLOCK_IDS * block
        if len(self._digests) == _DIGEST_BYTES * block:
            ids = bytes(self._rest[: ID_BYTES * (offset - start)])
        else:
            ids = ids_between(start, offset) if offset > start else b""
        return _hashed(self._digest(block), ids)[:CHAIN_BYTES]

    def _digest(self, block: int) -> bytes:
        """Return C(block)."""
        end = _DIGEST_BYTES * block
        return bytes(self._digests[end - _DIGEST_BYTES : end]) if block else _START


def _hashed(digest: bytes, ids: bytes | memoryview) -> bytes:
    state = _HASH.copy()
    state.update(digest)
    # In halves: an update of 2,048 bytes releases the GIL, which other threads may hold for 5 ms.
    state.update(ids[:_HALF_BYTES])
    state.update(ids[_HALF_BYTES:])
    return state.digest()
