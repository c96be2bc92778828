"""skipring: publish/subscribe without a broker in the data path, which heals from any state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skipring.runtime.client import Connection, connect
    from skipring.runtime.subscription import Health, HealthState, Publication, Subscription

__all__ = ["Connection", "Health", "HealthState", "Publication", "Subscription", "connect"]


def __getattr__(name: str) -> object:
    """Import what is asked for: the command line starts without sockets and disks."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skipring.runtime import client, subscription

    return getattr(client if hasattr(client, name) else subscription, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
