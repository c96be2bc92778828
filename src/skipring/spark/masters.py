"""Masters of Spark, as they are written: where one is, and what that means for us."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from skipring.errors import InputError, UnreachableError

REACH_WAIT_S: Final = 5.0  # Our guess; Spark itself tries for a minute and then says nothing useful

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:,\s*\d+)?\])?")
_ON_THIS_MACHINE: Final = re.compile(
    r"local|local-cluster\[.+\]|local\[.+\]|spark://(localhost|127(\.\d+){3}|\[::1\]):\d+"
)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 0xFFFF
_STANDALONE: Final = "spark://"
_KINDS: Final = (_STANDALONE, "yarn", "k8s://", "local[", "local-cluster[")


def is_local(master: str) -> bool:
    """True if all the work is done in the driver's own process."""
    return _LOCAL.fullmatch(master) is not None


def is_on_this_machine(master: str) -> bool:
    """True if nobody on another machine needs to reach the driver."""
    return _ON_THIS_MACHINE.fullmatch(master) is not None


def local_cores(master: str) -> int:
    """The number of tasks that run at the same time in a local master."""
    local = _LOCAL.fullmatch(master)
    assert local is not None, master
    if local["cores"] == "*":
        return os.cpu_count() or 1
    return int(local["cores"] or 1)


def require_usable(master: str) -> None:
    """Raise an error that says what to do if a master is none, or nobody answers there."""
    if master != "local" and not master.startswith(_KINDS):
        raise InputError(
            f"no Spark master: {master!r}; give local[2], local[*], spark://HOST:PORT, yarn or "
            "k8s://https://HOST:PORT"
        )
    if master.startswith(_STANDALONE):
        addresses = [_address(text, master) for text in master[len(_STANDALONE) :].split(",")]
        if not any(_answers(host, port) for host, port in addresses):
            raise UnreachableError(
                f"no Spark master answers at {master}; see that it runs (its page says its URL), "
                "or leave out the master to use this machine"
            )


def _address(text: str, master: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise InputError(f"no Spark master: {master!r}; its form is spark://HOST:PORT[,HOST:PORT]")
    return host.strip("[]"), int(port)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), REACH_WAIT_S).close()
    except OSError:
        return False
    return True
