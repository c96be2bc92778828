"""Clock that jumps on request; the interpreter imports this module when it starts.

It adds the seconds in the file ``DIR.clock`` to the time of a process with ``--data DIR``, an
argument that the programs of this package also accept.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_time_ns = time.time_ns


def _offset_ns() -> int:
    words = sys.argv
    if "--data" not in words[:-1]:
        return 0
    path = Path(words[words.index("--data") + 1] + ".clock")
    try:
        return int(float(path.read_text(encoding="ascii")) * 1e9)
    except (OSError, ValueError):
        return 0


def time_ns() -> int:
    """Return the nanoseconds since 1970, plus the offset."""
    return _time_ns() + _offset_ns()


def time_s() -> float:
    """Return the seconds since 1970, plus the offset."""
    return time_ns() / 1e9


vars(time).update(time_ns=time_ns, time=time_s)
