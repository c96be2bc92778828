"""skipring: publish/subscribe without a broker in the data path, which heals from any state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skipring import blocking, errors
    from skipring.api.connection import Connection, connect
    from skipring.api.reader import Cursor, Publication
    from skipring.api.subscription import Health, HealthState, Record, Subscription

__all__ = [
    "Connection",
    "Cursor",
    "Health",
    "HealthState",
    "Publication",
    "Record",
    "Subscription",
    "blocking",
    "connect",
    "errors",
]


def __getattr__(name: str) -> object:
    """Import what is asked for: the command line starts without sockets and disks."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name in ("blocking", "errors"):
        return import_module(f"skipring.{name}")
    homes = (import_module(f"skipring.runtime.{home}") for home in ("client", "subscription"))
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
