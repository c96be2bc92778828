"""Durable mark of each topic, stored outside of the database that may lose it.

Two files are overwritten in turn, in place, with one fsync each. A torn write spoils one file; the
other still holds the previous mark.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from skipring.core.peers import TopicId
from skipring.storage.data_dir import sync_directory

_NAMES: Final = ("publications.promise-a", "publications.promise-b")
_MAGIC: Final = b"SRD1"  # the last byte is the version
_SIZE_BYTES: Final = 4
_DIGEST_BYTES: Final = 16
_sync: Final = getattr(os, "fdatasync", os.fsync)  # not everywhere
_BYTES_MAX: Final = 1 << 26  # Limit of ours: about a million topics.


_RANDOM_BITS: Final = 32  # of an epoch; Guess: two that were drawn for one topic never meet


def new_epoch(before: int | None = None) -> int:
    """Return the epoch of a new topic, or the one that follows ``before``.

    An epoch is a counter of losses and 32 random bits: later ones are larger, and a directory that
    was restored does not repeat those it had.
    """
    losses = 0 if before is None else losses_of(before) + 1
    return losses << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


def losses_of(epoch: int) -> int:
    """Return how often a recovery has ended below what was promised."""
    return epoch >> _RANDOM_BITS


class DurableMark(Struct, frozen=True, array_like=True, order=True, gc=False):
    """Everything of a topic below ``end`` is durable; the offsets count in an epoch."""

    epoch: int = 0
    end: int = 0


class DurableMarks(Struct, frozen=True, array_like=True):
    """All promises of a store."""

    store: str
    number: int  # of the write: the later one counts
    topics: dict[TopicId, DurableMark]


_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(DurableMarks)


class DurableMarkFile:
    """The two files; damaged or missing ones are as if nothing had been promised."""

    __slots__ = ("_descriptors", "_number")

    def __init__(self, directory: Path) -> None:
        self._number = 0
        self._descriptors: list[int] = []
        try:
            for name in _NAMES:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._descriptors.append(os.open(directory / name, flags, 0o600))
            sync_directory(directory)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def read(self) -> DurableMarks | None:
        """What was promised last; None if that cannot be read."""
        found = [promises for d in self._descriptors if (promises := _read(d)) is not None]
        if not found:
            return None
        newest = max(found, key=lambda promises: promises.number)
        self._number = newest.number
        return newest

    def write(self, store: str, topics: Mapping[TopicId, DurableMark]) -> None:
        """Promise; after this has returned, it is remembered."""
        number = self._number + 1
        data = _framed(_ENCODER.encode(DurableMarks(store, number, dict(topics))))
        descriptor = self._descriptors[number % len(self._descriptors)]
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], done)
        _sync(descriptor)
        self._number = number


def _framed(data: bytes) -> bytes:
    framed = _MAGIC + len(data).to_bytes(_SIZE_BYTES, "big") + data
    return framed + _digest(framed)


def _read(descriptor: int) -> DurableMarks | None:
    begin = len(_MAGIC) + _SIZE_BYTES
    try:
        data = os.pread(descriptor, _BYTES_MAX, 0)
        end = begin + int.from_bytes(data[len(_MAGIC) : begin], "big")
        if data[: len(_MAGIC)] != _MAGIC or data[end : end + _DIGEST_BYTES] != _digest(data[:end]):
            return None
        return _DECODER.decode(data[begin:end])
    except (OSError, DecodeError, ValidationError, ValueError):
        return None


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES, person=b"skipring durable").digest()
