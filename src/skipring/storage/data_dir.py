"""Data directory: lock, atomic replacement of files, quarantine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from skipring.errors import (
    StorageError,
    StoreBusyError,
    StoreFullError,
    process_text,
)

_SURROUNDINGS: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM}
)
_FULL: Final = frozenset({ENOSPC, EDQUOT})
_PROCESS_ID_BYTES_MAX: Final = 20
_PRIMARY_CODE: Final = 0xFF  # SQLite's extended codes keep the kind of error in the lowest byte
# Exceptions of SQLite. An error text may quote a damaged table, which may be invalid UTF-8.
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


@contextmanager
def translate_os_errors(place: Path) -> Iterator[None]:
    """Translate errors of the system and of SQLite into errors of skipring with a remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise _full(place) from error
        raise StorageError(
            f"{place}: {reason}; check that it is a directory which this user may write to"
        ) from error
    except sqlite3.Error as error:
        if code_of(error) == sqlite3.SQLITE_FULL:
            raise _full(place) from error
        if code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise _busy(place) from error
        text = f"{place}: {error}; a restart keeps the intact records if the disk works"
        raise StorageError(text) from error


def _full(place: Path) -> StoreFullError:
    return StoreFullError(
        f"{place}: the disk is full; free some space, and the next commit retries"
    )


def _busy(place: Path, holder: int | None = None) -> StoreBusyError:
    """Return the error for a directory in use; ``holder`` is the process that claims to use it."""
    if holder == os.getpid():
        return StoreBusyError(
            f"{place}: already open in this process; close it first, or use another data directory"
        )
    user = process_text(holder) if holder is not None else None
    return StoreBusyError(
        f"{place}: used by {user or 'another process'}; stop it, or use another data directory"
    )


def code_of(error: sqlite3.Error) -> int:
    """Return the primary result code of an SQLite error; 0 if SQLite itself did not raise it."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & _PRIMARY_CODE


def is_damage(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> bool:
    """Return True if the database itself caused an error, and not its environment."""
    if isinstance(error, UnicodeDecodeError):
        return True
    may_use = os.access(path.parent, os.W_OK) and (
        not path.exists() or os.access(path, os.R_OK | os.W_OK)
    )
    return may_use and code_of(error) not in _SURROUNDINGS


def make_directory(directory: Path) -> None:
    """Create a data directory with access for its owner only; keep an existing one unchanged."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


class Lock:
    """Lock of a data directory against other processes; the end of the process releases it.

    The lock of the system decides. The process id in the file is for error messages only: after a
    crash it is the id of a process that has ended.
    """

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            holder = _process_id(self._file)
            os.close(self._file)
            raise _busy(path.parent, holder) from error
        except OSError:
            os.close(self._file)
            raise
        self._write(f"{os.getpid()}\n".encode())

    def _write(self, text: bytes) -> None:
        with suppress(OSError):  # a process opens its data even on a full disk
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._file >= 0:
            self._write(b"")
            os.close(self._file)
            self._file = -1


def _process_id(lock_file: int) -> int | None:
    """Return the process id in a lock file; None if it is missing or unreadable."""
    try:
        text = os.pread(lock_file, _PROCESS_ID_BYTES_MAX, 0).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) > 0 else None


def sync_directory(directory: Path) -> None:
    """Make the creation, replacement or removal of files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically; only its owner may read it."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
