"""All rows of the fault matrix, in the order of the table."""

from __future__ import annotations

from typing import Final

from skipring.faults import (
    crash_rows,
    disk_rows,
    network_rows,
    peer_rows,
    position_rows,
    secure_rows,
    stop_rows,
    time_rows,
)
from skipring.faults.row import Row

ROWS: Final[tuple[Row, ...]] = (
    *crash_rows.ROWS,
    *stop_rows.ROWS,
    *disk_rows.ROWS,
    *position_rows.ROWS,
    *time_rows.ROWS,
    *network_rows.ROWS,
    *peer_rows.ROWS,
    *secure_rows.ROWS,
)
