"""Rows of the fault matrix, in the order of the table."""

from typing import Final

from skipring.lab.faults.matrix import FaultRow
from skipring.lab.faults.rows import (
    certificates,
    crashes,
    disks,
    environment,
    messages,
    peers,
    stops,
)

ROWS: Final[tuple[FaultRow, ...]] = (
    *crashes.ROWS,
    *stops.ROWS,
    *disks.ROWS,
    *environment.ROWS,
    *messages.ROWS,
    *peers.ROWS,
    *certificates.ROWS,
)
