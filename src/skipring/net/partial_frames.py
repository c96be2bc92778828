"""Limit and deadline of unfinished frames (decision 0047).

All unfinished frames share a limit, so connections cannot fill the memory, and each frame has a
deadline. At the limit, the name that holds most bytes loses its oldest connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import Final, Protocol

PARTIAL_BYTES_MAX: Final = 32 << 20  # Limit: 32 of the longest frames at once.
FRAME_S: Final = 30.0  # Guess: the longest frame over a line of 300 kbit/s.
LATE_S: Final = 1.0  # Guess: if the timer is later, the loop was blocked and has unread input.


class Sending(Protocol):
    """Connection on which a frame arrives."""

    @property
    def account(self) -> str:
        """Return the name of the peer, or its host before the greeting."""

    @property
    def is_read(self) -> bool:
        """Return False while this process does not read from the connection."""

    def refuse(self, reason: str, detail: str) -> None:
        """Close the connection."""


class PartialFrames:
    """Bytes of unfinished frames, by connection."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._held: OrderedDict[Sending, tuple[float, int]] = (
            OrderedDict()
        )  # start time and bytes; oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def update(self, link: Sending, size_bytes: int, *, is_new: bool) -> None:
        """Set the size of a connection's unfinished frame; ``is_new`` restarts its deadline."""
        now_s = asyncio.get_running_loop().time()
        since_s, old_bytes = self._held.get(link, (now_s, 0))
        self.size_bytes += size_bytes - old_bytes
        if is_new or not size_bytes:
            self._held.pop(link, None)
            since_s = now_s
        if size_bytes:
            self._held[link] = since_s, size_bytes
            self._schedule(since_s + FRAME_S)
            if self.size_bytes > PARTIAL_BYTES_MAX:
                self._refuse_largest()

    def forget(self, link: Sending) -> None:
        """Forget a connection that is closed."""
        _, size_bytes = self._held.pop(link, (0.0, 0))
        self.size_bytes -= size_bytes

    def close(self) -> None:
        """Cancel the timer of the deadlines."""
        if self._timer is not None:
            self._timer.cancel()

    def _refuse_largest(self) -> None:
        sizes: Counter[str] = Counter()
        for link, (_, size_bytes) in self._held.items():
            sizes[link.account] += size_bytes
        largest = max(sizes, key=lambda name: sizes[name])
        oldest = next(link for link in self._held if link.account == largest)
        detail = (
            f"unfinished frames hold {self.size_bytes >> 20} MiB, which is the limit; "
            f"{largest} holds {sizes[largest] >> 20} MiB of them"
        )
        self.forget(oldest)
        oldest.refuse("too many unfinished frames", detail)

    def _schedule(self, due_s: float) -> None:
        if self._timer is None:
            self._due_s = due_s
            self._timer = asyncio.get_running_loop().call_at(due_s, self._on_due)

    def _on_due(self) -> None:
        """Refuse the connections whose frames are past their deadline."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        if now_s - self._due_s > LATE_S:  # the loop was blocked, not the peer
            self._schedule(now_s + LATE_S)
            return
        for link, (since_s, size_bytes) in list(self._held.items()):
            if not link.is_read:
                self.update(link, size_bytes, is_new=True)
            elif now_s - since_s >= FRAME_S:
                detail = f"{size_bytes} bytes of a frame, and no more within {FRAME_S:.0f} s"
                self.forget(link)
                link.refuse("unfinished frame", detail)
            else:
                break
        if self._held:
            since_s, _ = next(iter(self._held.values()))
            self._schedule(max(since_s + FRAME_S, now_s))
