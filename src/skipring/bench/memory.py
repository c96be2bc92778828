"""How much memory this process has, as the operating system counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory that is resident now; where the system does not say, the largest so far."""
    if not _STATM.exists():
        return peak_bytes()
    return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Largest resident memory so far."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
