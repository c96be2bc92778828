"""Addresses that a process cannot listen at: the reason, and the process that listens there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from pathlib import Path
from typing import Final

from skipring.storage.holder import process_text
from skipring.wire.runtime_messages import Address

_LISTENS: Final = "0A"  # the state of a socket in /proc/net/tcp
_REMEDIES: Final = {
    EACCES: "choose a port above 1023",
    EADDRINUSE: "stop it, or choose another port",
    EADDRNOTAVAIL: "this machine does not have that address; choose another",
}


def why_not_listening(address: Address, error: OSError) -> str:
    """Return why a process cannot listen at an address, and what to do, as a sentence."""
    reason = (error.strerror or str(error)).lower()
    if error.errno == EADDRINUSE:
        pid = listening_process(int(address.rpartition(":")[2]))
        holder = process_text(pid) if pid is not None else None
        reason = f"{holder or 'another process'} listens there"
    remedy = _REMEDIES.get(error.errno or 0, "choose another address")
    return f"cannot listen at {address}: {reason}; {remedy}"


def listening_process(port: int) -> int | None:
    """Return the process that listens at a TCP port; None if /proc does not show it.

    Processes of other users, and other systems than Linux, are not shown.
    """
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{inode}]")
    processes = Path("/proc").glob("[0-9]*") if sockets else ()
    return next((int(each.name) for each in processes if sockets & set(_open_files(each))), None)


def _open_files(process: Path) -> Iterator[str]:
    with suppress(OSError):  # it has ended, or is another user's
        for each in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield str(each.readlink())
