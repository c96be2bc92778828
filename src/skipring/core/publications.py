"""Publications (section 4.2): so far only carried along with a subscriber's state."""

from __future__ import annotations

from msgspec import Struct


class Publication(Struct, frozen=True, kw_only=True):
    """What somebody has published; without a payload only its id is known."""

    publisher: str
    seq: int
    payload: bytes | None = None
    time: int = 0
    key: bytes | None = None
    headers: dict[str, str] = {}
    id: bytes | None = None
