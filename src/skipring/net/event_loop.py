"""Event loop of a process: uvloop where it is installed."""

from __future__ import annotations

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop's, or Python's own where there is none."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415  (not on every system)
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()
