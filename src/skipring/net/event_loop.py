"""Event loop of a process: uvloop where it is installed."""

from __future__ import annotations

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's, or asyncio's if uvloop is not installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415  (not on every system)
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()
