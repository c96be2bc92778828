"""Publish/subscribe without a broker in the data path; the ring recovers from any state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from skipring import blocking, errors
    from skipring.api.connection import Connection, connect
    from skipring.api.cursor import Cursor
    from skipring.api.key_value_table import Change, Entry
    from skipring.api.keyvalue import KeyValue
    from skipring.api.reader import Publication
    from skipring.api.subscription import Record, Subscription
    from skipring.api.topic_session import Health, HealthState
    from skipring.core.publications import Revision
    from skipring.order.gaps import Gap

__all__ = [
    "Change",
    "Connection",
    "Cursor",
    "Entry",
    "Gap",
    "Health",
    "HealthState",
    "KeyValue",
    "Publication",
    "Record",
    "Revision",
    "Subscription",
    "blocking",
    "connect",
    "errors",
]

# Module and name of each public name. Imports are lazy: the command line starts without sockets.
_PUBLIC: Final = {
    "Change": ("skipring.api.key_value_table", "Change"),
    "Connection": ("skipring.api.connection", "Connection"),
    "Entry": ("skipring.api.key_value_table", "Entry"),
    "Cursor": ("skipring.api.cursor", "Cursor"),
    "Gap": ("skipring.order.gaps", "Gap"),
    "Health": ("skipring.api.topic_session", "Health"),
    "HealthState": ("skipring.api.topic_session", "HealthState"),
    "KeyValue": ("skipring.api.keyvalue", "KeyValue"),
    "Publication": ("skipring.api.reader", "Publication"),
    "Record": ("skipring.api.subscription", "Record"),
    "Revision": ("skipring.core.publications", "Revision"),
    "Subscription": ("skipring.api.subscription", "Subscription"),
    "blocking": ("skipring.blocking", None),
    "connect": ("skipring.api.connection", "connect"),
    "errors": ("skipring.errors", None),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PUBLIC[name]
    home = import_module(module)
    return home if attribute is None else getattr(home, attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
