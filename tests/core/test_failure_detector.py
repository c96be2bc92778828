"""Failure detection: crashed members are evicted in time, live members are not."""

from __future__ import annotations

from random import Random

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Evicted
from skipring.core.events import Received, Tick
from skipring.core.failure_detector import (
    ACCUSERS_MAX,
    EVICTION_TICKS,
    FORGET_TICKS,
    LONE_EVICTION_TICKS,
    PINGS_PER_TICK,
    REPORTS_PER_TICK,
    UNHEARD_TICKS,
    DetectorBudget,
    FailureDetector,
)
from skipring.core.messages import (
    ConfigurationAck,
    Digest,
    Ping,
    Pong,
    ReportUnresponsive,
    SetConfiguration,
    Subscribe,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.roster import Roster
from skipring.core.state import CaseState, DetectorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.core.topics import SupervisorTopics
from tests.support.fake_host import FakeHost, sent
from tests.support.machines import label, peer

LIVE = ProtocolConfig.live()
NAMES = [f"n{number:02d}" for number in range(3 * PINGS_PER_TICK)]


class Detector:
    """A detector with its budget, members and clock."""

    def __init__(self, *members: NodeId) -> None:
        self.budget = DetectorBudget()
        self.detector = FailureDetector(self.budget)
        self.roster = Roster()
        for member in members or ("a", "b", "c"):
            self.roster.add(member)
        self.now = 0

    def report(self, node: NodeId, *accusers: NodeId) -> None:
        for accuser in accusers:
            self.detector.report(node, accuser, self.now)

    def tick(self) -> list[NodeId]:
        """Run one tick; return the evicted members."""
        self.now += 1
        self.budget.renew()
        self.detector.on_tick(self.now, self.roster)
        return self.detector.take_evictions(self.now)

    def pings(self) -> list[NodeId]:
        return self.detector.to_ping(self.now)


def ticks_until_evicted(detector: Detector, *accusers: NodeId) -> int:
    """Return the ticks until eviction if all accusers report a at every tick."""
    for number in range(100):
        detector.report("a", *accusers)
        if detector.tick():
            return number + 1
    raise AssertionError("never evicted")


# -- at a node ---------------------------------------------------------------------------------


def member(config: ProtocolConfig = LIVE) -> FakeHost[Subscriber]:
    host = FakeHost(Subscriber("m", topic="news", rng=Random(0), config=config))
    host.receive(SetConfiguration(peer("0", "a"), label("1"), peer("0", "a")))
    return host


def test_member_reports_a_silent_ring_neighbour_to_the_supervisor() -> None:
    host = member()
    report = (SUPERVISOR, ReportUnresponsive("a"))
    ticks = [report in host.tick() for _ in range(UNHEARD_TICKS + 1)]
    assert ticks == [False, False, True, True]
    host.receive(Digest("a", 1), "a")
    assert report not in host.tick()


def test_member_acknowledges_configurations_and_pings_of_the_supervisor_only() -> None:
    host = member()
    configuration = SetConfiguration(None, label("0"), None)
    ack = (SUPERVISOR, ConfigurationAck())
    assert ack in host.receive(configuration, SUPERVISOR)
    assert host.receive(Ping(7), SUPERVISOR) == [(SUPERVISOR, Pong(7))]
    assert host.receive(Ping(7), "x") == []
    assert ack not in host.receive(configuration, "x")


def test_eager_configuration_sends_no_messages_of_the_detector() -> None:
    host = member(ProtocolConfig.eager())
    configuration = SetConfiguration(None, label("0"), None)
    found = [each for _ in range(9) for each in host.tick()]
    found += host.receive(configuration, SUPERVISOR)
    assert not any(isinstance(each, ReportUnresponsive | ConfigurationAck) for _, each in found)


# -- at the supervisor -------------------------------------------------------------------------


def test_two_accusers_are_believed_sooner_than_one() -> None:
    assert ticks_until_evicted(Detector(), "b", "c") == EVICTION_TICKS
    assert ticks_until_evicted(Detector(), "b") == LONE_EVICTION_TICKS


def test_sign_of_life_ends_the_suspicion() -> None:
    detector = Detector()
    for _ in range(EVICTION_TICKS - 1):
        detector.report("a", "b", "c")
        detector.tick()
    detector.detector.on_heard("a")
    assert detector.pings() == []
    assert ticks_until_evicted(detector, "b", "c") == EVICTION_TICKS


def test_unrepeated_accusation_is_forgotten() -> None:
    detector = Detector()
    detector.report("a", "b")
    for _ in range(FORGET_TICKS + 1):
        assert detector.tick() == []
    assert detector.pings() == []


def test_node_cannot_accuse_itself() -> None:
    detector = Detector()
    detector.report("a", "a")
    assert detector.pings() == []


def test_accusers_of_a_case_are_bounded() -> None:
    detector = Detector()
    detector.report("a", *(f"x{number}" for number in range(REPORTS_PER_TICK)))
    assert len(detector.detector.state().cases["a"].accusers) == ACCUSERS_MAX


def test_all_accused_members_are_pinged_in_turn() -> None:
    detector = Detector(*NAMES)
    for name in NAMES:
        detector.report(name, "x")
    pinged = []
    for _ in range(3):
        pinged += detector.pings()
        detector.tick()
    assert sorted(pinged) == NAMES


def test_pings_start_with_the_longest_accused() -> None:
    detector = Detector(*NAMES)
    for number, name in enumerate(NAMES[: 2 * PINGS_PER_TICK]):
        detector.report(name, "x")
        if number == PINGS_PER_TICK - 1:
            detector.tick()
    assert detector.pings() == NAMES[:PINGS_PER_TICK]


@pytest.mark.parametrize("reports", [REPORTS_PER_TICK, 10 * REPORTS_PER_TICK])
def test_reports_per_tick_are_limited(reports: int) -> None:
    names = [f"n{number}" for number in range(reports)]
    detector = Detector(*names, "more")
    for name in names:
        detector.report(name, "x")
    assert detector.detector.suspects == REPORTS_PER_TICK
    detector.tick()
    detector.report("more", "x")
    assert detector.detector.suspects == REPORTS_PER_TICK + 1


def test_member_is_evicted_once() -> None:
    detector = Detector()
    ticks_until_evicted(detector, "b", "c")
    assert detector.detector.take_evictions(detector.now) == []


def test_corrupted_variables_are_repaired_within_a_tick() -> None:
    detector = Detector("a")
    far = 10**12
    detector.detector.load(
        DetectorState(
            cases={"a": CaseState(far, far, ("b", "c", "d"), far), "gone": CaseState(0, 0)},
            unanswered={"a": far, "gone": 1},
            pings=far,
            reports=-far,
        )
    )
    detector.tick()
    state = detector.detector.state()
    assert state.unanswered == {"a": 1}
    assert state.cases == {"a": CaseState(1, 1, ("b", "c", "d"), 1)}
    assert (state.pings, state.reports) == (PINGS_PER_TICK, REPORTS_PER_TICK)


def supervisor(*members: NodeId) -> FakeHost[Supervisor]:
    host = FakeHost(Supervisor(config=LIVE))
    for name in members:
        host.receive(Subscribe(name), name)
    return host


def test_supervisor_evicts_a_member_that_acknowledges_nothing() -> None:
    host = supervisor("a", "b")
    pinged = 0
    for _ in range(3 * LONE_EVICTION_TICKS):
        pinged += ("b", Ping(0)) in host.tick()
        host.receive(ConfigurationAck(), "a")
    assert [effect.node for effect in host.all(Evicted)] == ["b"]
    assert pinged >= EVICTION_TICKS
    assert list(host.machine.roster.nodes) == ["a"]


def test_only_members_accuse_members() -> None:
    host = supervisor("a", "b")
    for accused, accuser in (("a", "x"), ("x", "b"), ("a", None)):
        host.receive(ReportUnresponsive(accused), accuser)
    assert host.machine.accused == 0
    host.receive(ReportUnresponsive("a"), "b")
    assert host.machine.accused == 1


def test_topics_of_a_process_share_the_pings_of_a_tick() -> None:
    topics = SupervisorTopics(config=LIVE)
    names = NAMES[: PINGS_PER_TICK + 1]
    for topic in ("one", "two"):
        for name in (*names, "x"):
            topics.handle(topic, Received(Subscribe(name), name))
        for name in names:
            topics.handle(topic, Received(ReportUnresponsive(name), "x"))
    first: list[str] = []
    for _ in range(2):
        pings = [
            topic
            for topic in topics.begin_tick()
            for _, message in sent(topics.handle(topic, Tick()))
            if isinstance(message, Ping)
        ]
        assert len(pings) == PINGS_PER_TICK
        first.append(pings[0])
    assert sorted(first) == ["one", "two"]


def test_node_outside_the_topic_answers_a_ping() -> None:
    host = FakeHost(Subscriber("m", topic="news", rng=Random(0), config=LIVE, wants=False))
    assert host.receive(Ping(1), SUPERVISOR) == [(SUPERVISOR, Pong(1))]
