"""Section 2.2, Algorithms 1 and 2: BuildRing with wrong labels of neighbours."""

from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import Rules
from skipring.core.labels import Label
from skipring.core.messages import CheckLabel, Introduce, Message, RemoveConnections
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.ring import Ring
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import node_names
from skipring.world.legitimacy import Layer, violations
from skipring.world.snapshot import Snapshot
from tests.support.conversations import at, simulation, standing_ring
from tests.support.machines import FAST, FIXED, PAPER, asked, edges, hear, ring_at, timeout

every_mode = pytest.mark.parametrize("rules", [PAPER, FIXED, FAST], ids=["paper", "fixed", "fast"])

L0, L01, L1, L11 = (Label.parse(bits) for bits in ("0", "01", "1", "11"))


# -- actions of a node -----------------------------------------------------------------------


@every_mode
def test_node_periodically_introduces_itself_to_both_neighbours(rules: Rules) -> None:
    """Each message contains a reference to the sender and its belief about the receiver."""
    ring = ring_at("01", left=at("a@0"), right=at("b@1"), rules=rules)
    me = at("m@01")
    assert timeout(ring) == [
        ("a", CheckLabel(me, L0, EdgeKind.LINE)),
        ("b", CheckLabel(me, L1, EdgeKind.LINE)),
    ]


@every_mode
@pytest.mark.parametrize(
    ("bits", "near", "far"), [("0", "b@01", "z@11"), ("11", "b@1", "z@0")], ids=["min", "max"]
)
def test_ends_of_the_line_keep_an_edge_to_each_other(
    rules: Rules, bits: str, near: str, far: str
) -> None:
    """The node with the minimum label stores an edge to the maximum, and vice versa."""
    side = "right" if bits == "0" else "left"
    ring = ring_at(bits, wrap=at(far), rules=rules, **{side: at(near)})
    me = at(f"m@{bits}")
    assert ("z", CheckLabel(me, at(far).label, EdgeKind.WRAP)) in timeout(ring)
    assert edges(ring)[2] == at(far)


@every_mode
def test_end_of_the_line_without_a_wrap_edge_introduces_itself_along_the_line(rules: Rules) -> None:
    """Algorithm 2: u.left = none and u.ring = none, so u.right gets Introduce(u, CYC)."""
    ring = ring_at("0", right=at("b@01"), rules=rules)
    assert ("b", Introduce(at("m@0"), EdgeKind.WRAP, first_hand=True)) in timeout(ring)


@pytest.mark.parametrize("rules", [PAPER, FIXED], ids=["paper", "fixed"])
@pytest.mark.parametrize(("far", "through"), [("x@001", "a"), ("x@11", "b")])
def test_other_nodes_are_delegated_to_the_neighbour_closer_to_them(
    rules: Rules, far: str, through: NodeId
) -> None:
    """The linearization of section 2.2: a reference that is not stored is forwarded, one hop."""
    ring = ring_at("011", left=at("a@01"), right=at("b@1"), rules=rules)
    said = hear(ring, Introduce(at(far), EdgeKind.LINE, first_hand=False))
    assert said == [(through, Introduce(at(far), EdgeKind.LINE, first_hand=False))]


def test_supervisor_is_asked_instead_with_all_rules() -> None:
    """R10: hop by hop a reference takes up to n rounds, through the supervisor two."""
    ring = ring_at("011", left=at("a@01"), right=at("b@1"))
    assert hear(ring, Introduce(at("x@11"), EdgeKind.LINE, first_hand=False)) == asked("x")


@every_mode
def test_closer_node_replaces_the_neighbour_and_is_introduced_to_it(rules: Rules) -> None:
    """Algorithm 1, Linearize: v becomes u.left, and receives the old u.left."""
    ring = ring_at("1", left=at("a@0"), rules=rules)
    said = hear(ring, CheckLabel(at("b@01"), L1, EdgeKind.LINE))
    assert edges(ring)[LEFT] == at("b@01")
    assert said == [("b", Introduce(at("a@0"), EdgeKind.LINE, first_hand=False))]


# -- corrupted labels ------------------------------------------------------------------------


@every_mode
def test_wrong_believed_label_is_answered_with_the_right_one(rules: Rules) -> None:
    """w compares w.label with the belief of v; if they differ, it sends v its correct label."""
    ring = ring_at("01", left=at("a@0"), right=at("b@1"), rules=rules)
    said = hear(ring, CheckLabel(at("a@0"), L11, EdgeKind.LINE))
    assert said == [("a", Introduce(at("m@01"), EdgeKind.LINE, first_hand=True))]


@every_mode
def test_right_believed_label_needs_no_answer(rules: Rules) -> None:
    ring = ring_at("01", left=at("a@0"), right=at("b@1"), rules=rules)
    assert hear(ring, CheckLabel(at("a@0"), L01, EdgeKind.LINE)) == []


@every_mode
def test_answer_corrects_the_label(rules: Rules) -> None:
    """The number of corrupted labels is reduced (proof of the lemma)."""
    ring = ring_at("0", right=at("b@11"), rules=rules)
    hear(ring, Introduce(at("b@01"), EdgeKind.LINE, first_hand=True))
    assert edges(ring)[RIGHT] == at("b@01")


@every_mode
def test_answer_moves_a_neighbour_to_its_true_side(rules: Rules) -> None:
    """Algorithm 1: under its right label v belongs to the other side, so u.left is empty."""
    ring = ring_at("1", left=at("b@01"), rules=rules)
    hear(ring, Introduce(at("b@11"), EdgeKind.LINE, first_hand=True))
    assert edges(ring)[LEFT] is None
    assert at("b@01") not in edges(ring)


@every_mode
def test_answer_corrects_the_neighbour_on_both_sides(rules: Rules) -> None:
    """Algorithm 1 checks u.left and "analogously" u.right, even if both name one node."""
    ring = ring_at("01", left=at("b@001"), right=at("b@1"), rules=rules)
    hear(ring, Introduce(at("b@1"), EdgeKind.LINE, first_hand=True))
    assert at("b@001") not in edges(ring)


@every_mode
def test_answer_corrects_the_wrap_edge(rules: Rules) -> None:
    """Algorithm 2, Introduce: u.ring = v under another label on the same side."""
    ring = ring_at("0", right=at("b@01"), wrap=at("z@11"), rules=rules)
    hear(ring, Introduce(at("z@111"), EdgeKind.WRAP, first_hand=True))
    assert edges(ring)[2] == at("z@111")


@every_mode
def test_node_without_a_label_asks_for_the_removal_of_its_references(rules: Rules) -> None:
    """Algorithms 1 and 2: u.label = none, so v gets RemoveConnections(u)."""
    ring = ring_at(None, rules=rules)
    assert hear(ring, Introduce(at("a@0"), EdgeKind.LINE, first_hand=True)) == [
        ("a", RemoveConnections("m"))
    ]


# -- the lemma: BuildRing with its extension is self-stabilizing ------------------------------


class RingsAlone:
    """BuildRing without a supervisor, from a weakly connected start with half its labels wrong."""

    def __init__(self, n: int, seed: int, rules: Rules) -> None:
        self.rng = Random(f"{n}/{seed}")
        names = node_names(n)
        labels = [Label.nth(x) for x in self.rng.sample(range(3 * n), n)]
        self.label_of = dict(zip(names, labels, strict=True))
        self.rings = {node: self._ring(node, rules) for node in names}
        self.channels: list[tuple[NodeId, Message]] = []
        order = self.rng.sample(names, n)
        for place, node in enumerate(order[1:], 1):
            self._connect(self.rings[node], self.rng.choice(order[:place]))
            if self.rng.random() < 0.5:
                self._connect(self.rings[self.rng.choice(names)], node)

    def _ring(self, node: NodeId, rules: Rules) -> Ring:
        ring = Ring(node, rules)
        ring.me = Peer(self.label_of[node], node)
        return ring

    def _connect(self, ring: Ring, other: NodeId) -> None:
        """Store a reference in a free variable."""
        wrong = Label.nth(self.rng.randrange(4 * len(self.label_of)))
        peer = Peer(self.rng.choice((wrong, self.label_of[other])), other)
        free = [name for name, value in zip("lrw", edges(ring), strict=True) if value is None]
        match self.rng.choice(free or [""]):
            case "l":
                ring.neighbours[LEFT] = peer
            case "r":
                ring.neighbours[RIGHT] = peer
            case "w":
                ring.wrap = peer

    def run_round(self) -> None:
        present, self.channels = self.channels, []
        steps = [*present, *((node, None) for node in self.rings)]
        self.rng.shuffle(steps)
        for node, message in steps:
            ring = self.rings[node]
            said = timeout(ring) if message is None else hear(ring, message)
            self.channels += [(to, answer) for to, answer in said if to != SUPERVISOR]

    def is_sorted(self) -> bool:
        line = sorted(Peer(label, node) for node, label in self.label_of.items())
        wraps = {line[0]: line[-1], line[-1]: line[0]}
        places = zip([None, *line[:-1]], line, [*line[1:], None], strict=True)
        return all(
            edges(self.rings[own.node]) == (before, after, wraps.get(own))
            for before, own, after in places
        )


@pytest.mark.parametrize("rules", [PAPER, FIXED], ids=["paper", "fixed"])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_build_ring_alone_sorts_any_connected_start(rules: Rules, n: int) -> None:
    """The lemma of section 2.2: wrong labels vanish and a sorted ring forms, without help."""
    for seed in range(30):
        world = RingsAlone(n, seed, rules)
        for _ in range(10 * n):
            world.run_round()
        assert world.is_sorted(), f"seed {seed}"
        for _ in range(5):
            world.run_round()
            assert world.is_sorted(), f"seed {seed}: closure"


@pytest.mark.parametrize("mode", ["fixed", "fast"])
@pytest.mark.parametrize("code", ["A10", "A11", "A20"])
@pytest.mark.parametrize("n", [2, 5, 16, 33])
def test_ring_recovers_from_wrong_labels_and_sides(mode: str, code: str, n: int) -> None:
    """The same inside BuildSR: only the ring is wrong, and it becomes legitimate."""
    start = ADVERSARIES[code].build(n, Random(f"{code}/{n}"))
    assert {violation.layer for violation in violations(start)} == {Layer.RING}
    report = simulation(start, mode=mode, max_rounds=3 * n + 20).run()
    assert report.is_good, report.violations


def with_a_twin_of_its_right_neighbour(n: int, index: int) -> Snapshot:
    """Return SR(n) where one node also has its right neighbour as left one, with a nearer label."""
    start = standing_ring(n)
    node = node_names(n)[index]
    state = start.subscribers[node]
    assert state.left is not None
    assert state.right is not None
    nearer = Label((state.left.label.position + state.label.position) // 2)
    spoilt = replace(state, left=Peer(nearer, state.right.node))
    return replace(start, subscribers=start.subscribers | {node: spoilt})


@pytest.mark.parametrize("mode", ["paper", "fixed", "fast"])
@pytest.mark.parametrize("index", [1, 5, 37, 90])
def test_neighbour_stored_on_both_sides_is_corrected_at_once(mode: str, index: int) -> None:
    """The answer to the wrong belief corrects it, without the round robin."""
    start = with_a_twin_of_its_right_neighbour(128, index)
    report = simulation(start, mode=mode, max_rounds=8, closure=5).run()
    assert report.is_good, report.violations
