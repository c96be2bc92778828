"""Session of a key-value view: its table, which follows the log, and its watches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet

from skipring.api.charter import newest_charter, publications, publish_policy, wait_for_charter
from skipring.api.key_value_table import (
    AFTER,
    UNTIL,
    Change,
    KeyValueTable,
    bytes_of_key,
    text_of_key,
)
from skipring.api.reader import READ_AT_ONCE
from skipring.api.subscription import Record, Subscription
from skipring.api.table_scrub import TableScrub
from skipring.api.topic_session import TopicSession
from skipring.core.limits import shown
from skipring.core.peers import TopicId
from skipring.core.retention.charter import Policy
from skipring.errors import InputError, SkipringError
from skipring.net.event_loop import Timer

RENEWALS: Final = 3  # of a lease in its time: two of them may fail
MICROSECONDS: Final = 1_000_000
READ_RECORDS: Final = READ_AT_ONCE * 16  # Guess: about a millisecond of work


class ChangeReceiver(Protocol):
    """Receiver of the changes of a view."""

    def add(self, change: Change[bytes]) -> None:
        """Add a change of any key."""

    def wake_up(self) -> None:
        """Wake up the waiting caller: the view has ended."""


class KeyValueSession:
    """Table of a topic that one task keeps up to date, and its watches.

    At each tick the session compares the table with what the topic retains.
    """

    def __init__(self, session: TopicSession) -> None:
        self.session = session
        self.table = KeyValueTable()
        self.watches: WeakSet[ChangeReceiver] = WeakSet()
        self.task: asyncio.Task[None] | None = None
        self._subscription = Subscription(session)
        self._scrub = TableScrub(self.table)
        connection = session.connection
        self._ticker = Timer(self._on_tick, connection.settings.tick_s, connection.rng)
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_us: int | None = None  # the end of a lease at which it fires
        self._failure: str | None = None

    @property
    def has_ended(self) -> bool:
        """Return True if no change will arrive."""
        return self.task is None or self.task.done() or self._failure is not None

    def check(self) -> None:
        """Raise SkipringError if the view is not open."""
        self.session.check_open()
        self.check_error()

    def check_error(self) -> None:
        """Raise the error that ended the view."""
        if self._failure is not None:
            raise SkipringError(self._failure)
        task = self.task
        error = task.exception() if task and task.done() and not task.cancelled() else None
        if error is not None:
            raise SkipringError(f"the view of {shown(self.session.topic)} has ended") from error

    def now_us(self) -> int:
        """Return the time by which leases end."""
        return self.session.now_us()

    async def open(self) -> None:
        """Join the topic and read the stored publications."""
        await self._subscription.__aenter__()
        try:
            await self._ensure_compacted()
        except BaseException:
            await self._subscription.leave()
            raise
        self._failure, self._scrub = None, TableScrub(self.table)
        self.task = asyncio.create_task(self._follow())
        self._ticker.start()
        await self.catch_up()

    async def _ensure_compacted(self) -> None:
        """Make an empty topic a compacted one; raise InputError if it has uncompacted records."""
        session = self.session
        machine = session.host.machine(session.topic)
        assert machine is not None, "a node that has subscribed has a machine"
        await wait_for_charter(session.connection, machine, is_enough_known=True)
        charter = newest_charter(machine)
        if charter is None and not publications(machine):
            await publish_policy(session.connection, machine, Policy(compact=True))
        elif charter is None or not charter.policy.compact:
            raise InputError(
                f"{shown(session.topic)} is not compacted, so old values of its keys would stay; "
                f"{_remedy(session.topic)}, or choose another topic",
                parameter="topic",
            )

    async def close(self) -> None:
        """Leave the topic; watches end."""
        self._stop()
        try:
            await self._subscription.leave()
        finally:
            if self.task is not None:
                self.task.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(self.task, return_exceptions=True)
            self._wake_watches()

    def _stop(self) -> None:
        self._ticker.stop()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _wake_watches(self) -> None:
        for watch in list(self.watches):
            watch.wake_up()

    # -- reading -----------------------------------------------------------------------------

    async def _follow(self) -> None:
        reader = self.session.reader
        try:
            while await reader.arrival():
                self._apply_available()
        finally:  # the connection may have left the topic
            self._stop()
            self._wake_watches()

    async def catch_up(self) -> None:
        """Apply the publications that are stored at the time of the call."""
        reader, end = self.session.reader, self.session.reader.end
        while reader.is_open and reader.offset < end:
            self._apply_available()
            await asyncio.sleep(0)

    def _apply_available(self) -> None:
        """Apply some unread publications; at an ``await`` each is either unread or applied."""
        now = self.now_us()
        for publication in self.session.reader.fetch(READ_RECORDS):
            if (change := self.table.apply(publication, now)) is not None:
                self._announce(change)
        if self.table.next_expiry != self._expiry_us:
            self._schedule_expiry()

    def expire(self) -> None:
        """Delete the values whose lease has ended."""
        for change in self.table.expire(self.now_us()):
            self._announce(change)
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        """Call ``expire`` at the end of the next lease."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._expiry_us = end = self.table.next_expiry
        if end is not None and not self.has_ended:
            delay_s = max(end - self.now_us(), 0) / MICROSECONDS  # each tick reads the clock again
            self._expiry = asyncio.get_running_loop().call_later(delay_s, self.expire)

    def _announce(self, change: Change[bytes]) -> None:
        for watch in self.watches:
            watch.add(change)

    # -- what the topic retains --------------------------------------------------------------

    def _on_tick(self) -> None:
        """Compare a part of the table with what the topic retains; end if it is not compacted."""
        session = self.session
        machine = session.host.machine(session.topic) if session.is_open else None
        retention = machine.replica.retention if machine is not None else None
        if machine is None or retention is None:
            return
        newest = newest_charter(machine)
        is_compacted = retention.policy.compact or (newest is not None and newest.policy.compact)
        if retention.acting is not None and not is_compacted:
            self._fail()
            return
        log, offset = machine.replica.log, session.reader.offset
        for change in self._scrub.step(retention, log, offset, self.now_us()):
            self._announce(change)
        self.expire()

    def _fail(self) -> None:
        """End the view: its topic is not compacted any more."""
        topic = self.session.topic
        self._failure = (
            f"the view of {shown(topic)} has ended: a new policy of the topic does not compact it; "
            f"{_remedy(topic)}, and open another view"
        )
        self._stop()
        if self.task is not None:
            self.task.cancel()
        self._wake_watches()

    # -- writing -----------------------------------------------------------------------------

    async def write(
        self, values: Iterable[tuple[str | bytes, bytes]], headers: Mapping[str, str]
    ) -> list[bytes]:
        """Publish writes and apply them; return their ids."""
        self.check()
        records = [self._record(key, payload, headers) for key, payload in values]
        made = await self._subscription.publish_many(records)
        await self.catch_up()
        return made

    def _record(self, key: str | bytes, payload: bytes, headers: Mapping[str, str]) -> Record:
        encoded = bytes_of_key(key)
        replaced = self.table.last_time(text_of_key(encoded))
        after = {} if replaced is None else {AFTER: str(replaced)}
        return Record(payload, encoded, {**headers, **after})

    async def write_lease(self, key: str | bytes, payload: bytes, ttl: float) -> None:
        """Publish a value with a lease that begins now."""
        until = self.now_us() + round(ttl * MICROSECONDS)
        await self.write([(key, payload)], {UNTIL: str(until)})

    async def renew(self, key: str | bytes, payload: bytes, ttl: float) -> None:
        """Renew a lease until cancelled; a failed renewal is tried again at the next one."""
        while True:
            await asyncio.sleep(ttl / RENEWALS)
            with suppress(SkipringError):
                await self.write_lease(key, payload, ttl)


def _remedy(topic: TopicId) -> str:
    return f"call `node.charter({shown(topic)}).set(compact=True)`"
