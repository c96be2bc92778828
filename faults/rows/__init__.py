"""Rows of the fault matrix, in the order of the table."""

from typing import Final

from faults.matrix import FaultRow
from faults.rows import (
    certificates,
    crashes,
    disks,
    environment,
    messages,
    peers,
    retention,
    segments,
    stops,
)

ROWS: Final = tuple(
    value
    for module in (
        crashes,
        stops,
        segments,
        disks,
        retention,
        environment,
        messages,
        peers,
        certificates,
    )
    for value in vars(module).values()
    if isinstance(value, FaultRow)
)
