"""Handover: its end when the receiver has confirmed everything, and its cost by difference."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect, HeldBy, Origin, Outbox, Send, SendSynced
from skipring.core.handover import (
    HANDOVERS_MAX,
    IDS_ASKED,
    PATIENCE_TICKS,
    SENT_MAX,
    Handovers,
)
from skipring.core.log import LogEntry, MemoryLog
from skipring.core.messages import (
    CheckHeld,
    HandoverDone,
    Held,
    Message,
    Publications,
    RequestHandover,
    ids_in,
)
from skipring.core.replica import COUNTED_MAX, Replica
from skipring.core.state import HandoversState, HandoverState
from tests.support.batches import batch, batch_of
from tests.support.fake_host import FakeHost

TOPIC = "news"
MESSAGES_MAX = 20_000


def made(number: int, size: int = 8) -> RecordBatch:
    return batch((b"%d" % number).ljust(size), first=number, topic=TOPIC)


class DurableLog(MemoryLog):
    """Log that claims to be on disk."""

    @property
    def is_durable(self) -> bool:
        return True


class Side(FakeHost[Handovers]):
    """One side of a handover with its host."""

    def __init__(self, name: str, config: ProtocolConfig, *, is_durable: bool = False) -> None:
        log = DurableLog() if is_durable else MemoryLog()
        self.replica = Replica(TOPIC, log)
        super().__init__(Handovers(name, self.replica, config), log)
        self.neighbours: tuple[str, ...] = ()

    def keep(self, *publications: RecordBatch) -> Side:
        """Store publications that arrived by other means."""
        self.act(lambda out: self.replica.add(publications, out, origin=Origin.REPAIR))
        return self

    def hear(self, message: Message) -> list[Effect]:
        """Handle a message; return the effects."""
        match message:
            case CheckHeld():
                return self.act(lambda out: self.machine.on_check_held(message, out))
            case Held():
                return self.act(lambda out: self.machine.on_held(message, out))
            case Publications(publications=publications):
                self.keep(*publications)
            case RequestHandover():
                return self.act(lambda out: self.machine.on_request(message, self.neighbours, out))
        return []

    def pass_tick(self) -> list[Effect]:
        """Run one tick; return the effects."""
        self.replica.renew_credits()
        return self.act(self.machine.on_tick)

    def act(self, action: Callable[[Outbox], object]) -> list[Effect]:
        """Run one event of the replica; return the effects."""

        def whole(out: Outbox) -> None:
            action(out)
            self.machine.finished(out, is_complete=True)

        self.replica.end_event()
        effects = self.run(whole)
        self.replica.end_event()
        return effects


class Pair:
    """Holder h, receiver r, and all messages between them."""

    def __init__(self, *, config: ProtocolConfig | None = None, is_durable: bool = False) -> None:
        config = config or ProtocolConfig()
        self.h = Side("h", config)
        self.r = Side("r", config, is_durable=is_durable)
        self.said: list[Message] = []
        self.effects: list[Effect] = []
        self.rng = Random(0)

    def start(self, **wanted: object) -> None:
        self.carry(self.h.act(lambda out: self.h.machine.start("r", out, **wanted)))

    def carry(self, effects: list[Effect], loss: float = 0.0) -> None:
        """Deliver messages until both sides are silent."""
        self.effects += effects
        waiting = [e for e in effects if isinstance(e, Send | SendSynced)]
        while waiting:
            assert len(self.said) < MESSAGES_MAX
            effect = waiting.pop(0)
            self.said.append(effect.message)
            if self.rng.random() < loss:
                continue
            side = {"h": self.h, "r": self.r}[effect.to]
            more = side.hear(effect.message)
            self.effects += more
            waiting += [e for e in more if isinstance(e, Send | SendSynced)]

    def run(self, ticks: int, loss: float = 0.0) -> int:
        """Run ticks until the handover has ended; return their number."""
        for tick in range(ticks):
            if "r" not in self.h.machine:
                return tick
            self.carry(self.h.pass_tick(), loss)
        return ticks

    def confirmed(self) -> set[bytes]:
        return {key for e in self.effects if isinstance(e, HeldBy) for key in e.ids}

    def bytes_of(self, kind: type[Message]) -> int:
        return sum(
            len(m.ids) if isinstance(m, CheckHeld) else 1 for m in self.said if type(m) is kind
        )


def is_over(pair: Pair) -> bool:
    return "r" not in pair.h.machine


@pytest.mark.parametrize("count", [0, 1, 64, 65, 3000])
def test_receiver_holds_everything_when_a_handover_is_over(count: int) -> None:
    pair = Pair()
    pair.h.keep(*map(made, range(count)))
    pair.start(everything=True)
    pair.run(20)
    assert is_over(pair)
    assert set(pair.h.replica.index().keys()) == set(pair.r.replica.index().keys())


def test_equal_tries_are_confirmed_with_one_request() -> None:
    pair = Pair()
    for side in (pair.h, pair.r):
        side.keep(*map(made, range(5000)))
    pair.start(everything=True)
    assert is_over(pair)
    assert [type(message) for message in pair.said] == [CheckHeld, Held]


def test_handover_costs_in_proportion_to_the_difference() -> None:
    pair = Pair()
    pair.h.keep(*map(made, range(5000)))
    pair.r.keep(*map(made, range(10, 5000)))
    pair.r.keep(*map(made, range(6000, 6010)))  # the receiver may hold more
    pair.start(everything=True)
    assert is_over(pair)
    sent = [p for m in pair.said if isinstance(m, Publications) for p in m.publications]
    assert len(sent) == 10
    asked = sum(len(ids_in(m.ids)) for m in pair.said if isinstance(m, CheckHeld))
    assert asked <= 20 * 65 + 10


def test_single_ids_are_confirmed_and_nothing_else_is_sent() -> None:
    pair = Pair()
    pair.h.keep(*map(made, range(IDS_ASKED + 10)))
    own = [made(number).id for number in range(3)]
    pair.start(ids=own)
    assert is_over(pair)
    assert pair.confirmed() == set(own)
    assert pair.r.replica.count == 3


@pytest.mark.parametrize("is_durable", [True, False])
def test_receiver_states_whether_it_has_a_disk(is_durable: bool) -> None:
    pair = Pair(is_durable=is_durable)
    pair.h.keep(made(0))
    pair.start(ids=[made(0).id])
    held = [e for e in pair.effects if isinstance(e, HeldBy)]
    assert [e.durable for e in held] == [is_durable]


def test_receiver_confirms_only_after_a_sync() -> None:
    side = Side("r", ProtocolConfig())
    side.keep(made(0))
    effects = side.hear(CheckHeld("h", 1, (), made(0).id))
    assert [type(effect) for effect in effects] == [SendSynced]


def test_lost_messages_only_delay_a_handover() -> None:
    for seed in range(10):
        pair = Pair()
        pair.rng = Random(seed)
        pair.h.keep(*map(made, range(500)))
        pair.start(everything=True)
        while not is_over(pair):  # a receiver that stays silent is abandoned
            pair.run(200, loss=0.3)
            if set(pair.h.replica.index().keys()) - set(pair.r.replica.index().keys()):
                pair.start(everything=True)
        assert set(pair.h.replica.index().keys()) == set(pair.r.replica.index().keys())


def test_handover_ends_while_both_sides_keep_growing() -> None:
    pair = Pair()
    pair.h.keep(*map(made, range(2000)))
    held = set(pair.h.replica.index().keys())
    out = Outbox()
    pair.h.machine.start("r", out, everything=True)
    effects = pair.h.apply(out)
    for number in range(MESSAGES_MAX):  # one message, and one publication on either side
        waiting = [e for e in effects if isinstance(e, Send | SendSynced)]
        effects = [
            e for each in waiting for e in {"h": pair.h, "r": pair.r}[each.to].hear(each.message)
        ]
        pair.h.keep(made(10_000 + number))
        pair.r.keep(made(50_000 + number))
        if is_over(pair):
            break
        if not waiting:
            effects = pair.h.pass_tick()
    assert is_over(pair)
    assert held <= set(pair.r.replica.index().keys())


def test_handover_keeps_to_the_credits_of_a_tick() -> None:
    config = ProtocolConfig(chunk_bytes=4096, credit_chunks=4)
    pair = Pair(config=config)
    pair.h.keep(*(made(number, 1024) for number in range(100)))
    pair.start(everything=True)
    sent = [m for m in pair.said if isinstance(m, Publications)]
    assert len(sent) == 4
    assert pair.run(40) > 4
    assert set(pair.h.replica.index().keys()) == set(pair.r.replica.index().keys())


def test_silent_receiver_is_abandoned_after_eight_ticks() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(made(0))
    side.machine.start("r", Outbox(), everything=True)
    asked = [len(side.pass_tick()) for _ in range(PATIENCE_TICKS)]
    assert sum(asked) == PATIENCE_TICKS // 2  # the request is repeated
    side.pass_tick()
    assert "r" not in side.machine


def test_receiver_whose_answers_confirm_nothing_is_abandoned_after_eight_ticks() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(*map(made, range(100)))
    effects = side.hear(RequestHandover("r", 7))
    ticks = 0
    while "r" in side.machine:
        questions = [e.message for e in effects if isinstance(e, Send)]
        for question in questions:
            assert isinstance(question, CheckHeld)
            assert side.hear(Held("r", question.session, True)) == []  # no immediate request
        effects, ticks = side.pass_tick(), ticks + 1
        assert ticks <= PATIENCE_TICKS + 1


def test_handovers_on_request_leave_places_for_own_ones_and_for_a_drain() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(made(0))
    for number in range(HANDOVERS_MAX + 1):
        side.hear(RequestHandover(f"x{number}", 7))
    assert f"x{HANDOVERS_MAX}" not in side.machine
    for number in range(HANDOVERS_MAX):
        assert side.machine.start(f"y{number}", Outbox(), ids=[made(0).id])
    assert not side.machine.start("z", Outbox(), ids=[made(0).id])
    assert side.machine.start("z", Outbox(), everything=True, is_drain=True)


def test_neighbour_takes_the_place_of_a_node_that_is_not_a_neighbour() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(made(0))
    side.neighbours = ("x0", "r")
    for number in range(HANDOVERS_MAX):
        side.hear(RequestHandover(f"x{number}", 7))
    side.hear(RequestHandover("r", 7))
    assert "r" in side.machine
    assert "x0" in side.machine
    assert "x1" not in side.machine


def test_receiver_that_refuses_a_publication_is_abandoned() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(made(0))
    out = Outbox()
    side.machine.start("r", out, everything=True)
    effects: list[Effect] = side.apply(out)
    ticks = 0
    while "r" in side.machine:
        questions = [e.message for e in effects if isinstance(e, Send)]
        effects = side.pass_tick() if not questions else []
        ticks += not questions
        for question in questions:
            if isinstance(question, CheckHeld):
                empty = Side("r", ProtocolConfig())
                (answer,) = empty.hear(question)
                assert isinstance(answer, SendSynced)
                effects += side.hear(answer.message)
    assert SENT_MAX - 1 <= ticks <= 2 * SENT_MAX


def test_answer_to_an_earlier_request_is_not_counted() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(made(0))
    out = Outbox()
    side.machine.start("r", out, everything=True)
    (asked,) = out
    assert isinstance(asked, Send)
    assert isinstance(asked.message, CheckHeld)
    side.machine.start("r", Outbox(), everything=True)  # asked again, about more ids
    side.hear(Held("r", asked.message.session, True, asked.message.claims))
    assert "r" in side.machine


def test_node_that_requests_a_handover_is_informed_of_its_end() -> None:
    pair = Pair()
    pair.h.keep(*map(made, range(100)))
    pair.carry(pair.h.hear(RequestHandover("r", 7)))
    assert pair.said[-1] == HandoverDone("h", 7, complete=True)
    assert pair.r.replica.count == 100


def test_publication_lost_at_the_holder_does_not_block_a_handover() -> None:
    pair = Pair()
    pair.h.keep(made(0))
    pair.start(ids=[made(0).id, made(7).id])
    pair.run(5)
    assert is_over(pair)
    assert pair.confirmed() == {made(0).id}


def test_node_that_reads_its_log_after_a_start_confirms_what_it_knows_and_denies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skipring.core.replica.FAR_BEHIND", 2)
    side = Side("r", ProtocolConfig())
    for number in range(5):
        side.log.append(made(number))
    side.replica.recover({})
    read, unread, absent = made(0).id, made(4).id, made(9).id
    (answer,) = side.hear(CheckHeld("h", 1, (), read + unread + absent))
    assert isinstance(answer, SendSynced)
    assert isinstance(answer.message, Held)
    assert (answer.message.held, answer.message.missing) == (read, b"")
    assert side.hear(CheckHeld("h", 1, (), unread)) == []
    side.replica.index()
    (answer,) = side.hear(CheckHeld("h", 1, (), read + unread + absent))
    assert isinstance(answer, SendSynced)
    assert isinstance(answer.message, Held)
    assert (answer.message.held, answer.message.missing) == (read + unread, absent)


def test_unconfirmed_records_of_batches_are_counted() -> None:
    side = Side("h", ProtocolConfig())
    several = batch_of(b"x", b"y", b"z", first=10, topic=TOPIC)
    side.keep(made(0), several)
    side.machine.start("r", Outbox(), everything=True)
    assert side.machine.unconfirmed("r") == 4
    assert side.machine.unconfirmed("x") == 0


@pytest.mark.parametrize("is_listed", [False, True])
def test_count_of_unconfirmed_records_reads_a_bounded_number_of_batches(
    is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side("h", ProtocolConfig())
    batches = [made(number) for number in range(2 * COUNTED_MAX)]
    side.keep(*batches)
    ids = [each.id for each in batches if is_listed]
    side.machine.start("r", Outbox(), ids=ids, everything=not is_listed)
    indexed, read, offsets = len(side.replica.indexed_trie), MemoryLog.read, []

    def recorded(log: MemoryLog, offset: int) -> LogEntry | None:
        offsets.append(offset)
        return read(log, offset)

    monkeypatch.setattr(MemoryLog, "read", recorded)
    assert side.machine.unconfirmed("r") == 2 * COUNTED_MAX
    assert len(offsets) <= COUNTED_MAX
    assert len(side.replica.indexed_trie) == indexed, "a query indexes nothing"


def test_overlong_request_is_dropped() -> None:
    side = Side("r", ProtocolConfig())
    assert (
        side.hear(CheckHeld("h", 1, (), b"".join(made(n).id for n in range(IDS_ASKED + 1)))) == []
    )
    assert side.hear(CheckHeld("r", 1, (), made(0).id)) == []


def test_corrupted_handovers_end() -> None:
    side = Side("h", ProtocolConfig())
    side.keep(*map(made, range(10)))
    wrong = HandoverState(
        -7, (), {made(3).id: -(1 << 40), made(50).id: 1 << 40}, -7, True, -(1 << 40)
    )
    state = HandoversState(session=-3, to={"x": wrong, "supervisor": wrong})
    side.machine.load(state)
    assert side.machine.state() == state
    for _ in range(2 * PATIENCE_TICKS):
        side.pass_tick()
    assert side.machine.state().to == {}


def test_receiver_that_confirms_ids_it_does_not_hold_is_believed() -> None:
    pair = Pair()
    pair.h.keep(made(0))
    out = Outbox()
    pair.h.machine.start("r", out, ids=[made(0).id])
    question = next(e.message for e in pair.h.apply(out) if isinstance(e, Send))
    assert isinstance(question, CheckHeld)
    pair.effects += pair.h.hear(Held("r", question.session, True, (), question.ids))
    assert is_over(pair)
    assert pair.confirmed() == {made(0).id}
    assert pair.r.replica.count == 0
