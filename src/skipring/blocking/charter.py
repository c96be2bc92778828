"""Blocking charter of a topic."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from skipring.api.charter import TOMBSTONES, Tombstones
from skipring.api.charter import TopicCharter as AsyncTopicCharter
from skipring.blocking.loop_thread import LoopThread
from skipring.core.retention.charter import Charter


class TopicCharter:
    """Charter of one topic; returned by ``Connection.charter``."""

    def __init__(self, thread: LoopThread, charter: AsyncTopicCharter) -> None:
        self._thread = thread
        self._charter = charter

    def set(
        self,
        *,
        max_age: timedelta | None = None,
        max_count: int | None = None,
        max_bytes: int | None = None,
        compact: bool = False,
        tombstones: Tombstones = TOMBSTONES,
    ) -> Charter:
        """Set the limits of the topic; return the charter once it is stored here.

        The arguments and errors are those of ``skipring.Connection.charter``.
        """
        change = partial(
            self._charter.set,
            max_age=max_age,
            max_count=max_count,
            max_bytes=max_bytes,
            compact=compact,
            tombstones=tombstones,
        )
        return self._thread.call(change)

    def show(self) -> Charter | None:
        """Return the newest charter, or None; ``effective_from`` is when it begins."""
        return self._thread.call(self._charter.show)

    def delete(self) -> Charter:
        """Remove the publications of the topic: members retain each for some minutes only."""
        return self._thread.call(self._charter.delete)
