"""Synchronous twin of the public API, for scripts, threads and notebooks.

Each connection runs one event loop in its own thread; the caller waits for it. A call can be
interrupted at any time (Ctrl-C) without loss.
"""

from skipring.blocking.connection import Connection, Subscription, connect
from skipring.blocking.keyvalue import KeyValue

__all__ = ["Connection", "KeyValue", "Subscription", "connect"]
