"""All rows of the fault matrix, in the order of the table."""

from __future__ import annotations

from typing import Final

from skipring.lab.faults.row import FaultRow
from skipring.lab.faults.rows import (
    certificates,
    clocks,
    crashes,
    disks,
    messages,
    networks,
    peers,
    positions,
    stops,
)

ROWS: Final[tuple[FaultRow, ...]] = (
    *crashes.ROWS,
    *stops.ROWS,
    *disks.ROWS,
    *positions.ROWS,
    *clocks.ROWS,
    *networks.ROWS,
    *messages.ROWS,
    *peers.ROWS,
    *certificates.ROWS,
)
