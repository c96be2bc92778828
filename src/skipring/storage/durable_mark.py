"""Durable mark of each topic, stored outside of the database that may lose it.

Two files are overwritten in turn, in place, with one fsync each. A torn write damages one file; the
other still has the previous mark.
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
_sync: Final = getattr(os, "fdatasync", os.fsync)  # not on every platform
_BYTES_MAX: Final = 1 << 26  # Limit: about a million topics.


_RANDOM_BITS: Final = 32  # random bits of an epoch. Guess: two epochs of a topic do not collide.


def new_epoch(before: int | None = None) -> int:
    """Return the epoch of a new topic, or the next epoch after ``before``.

    An epoch is a counter of losses and 32 random bits: later epochs are larger, and a restored
    directory does not reuse an epoch.
    """
    losses = 0 if before is None else losses_of(before) + 1
    return losses << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


def losses_of(epoch: int) -> int:
    """Return the number of recoveries that ended below the durable mark."""
    return epoch >> _RANDOM_BITS


class DurableMark(Struct, frozen=True, array_like=True, order=True, gc=False):
    """Durable mark of a topic: all offsets below ``end``, in an epoch, are on disk."""

    epoch: int = 0
    end: int = 0


class DurableMarks(Struct, frozen=True, array_like=True):
    """Durable marks of all topics of a store."""

    store: str
    number: int  # number of the write; the file with the larger number is valid
    topics: dict[TopicId, DurableMark]


_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(DurableMarks)


class DurableMarkFile:
    """Two files with the durable marks; a damaged or missing file counts as empty."""

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
        """Return the newest readable marks; None if there are none."""
        found = [promises for d in self._descriptors if (promises := _read(d)) is not None]
        if not found:
            return None
        newest = max(found, key=lambda promises: promises.number)
        self._number = newest.number
        return newest

    def write(self, store: str, topics: Mapping[TopicId, DurableMark]) -> None:
        """Write marks; they are on disk when the call returns."""
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
