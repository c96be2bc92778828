"""Digest over the tree, summed from the leaves to label 0 (R14)."""

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox
from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import Digest, GetConfiguration
from skipring.core.peers import NodeId, Peer
from skipring.core.ring_digest import RingDigest
from skipring.core.roster import Roster
from skipring.core.shortcuts import Shortcuts
from skipring.core.state import legitimate_states
from skipring.core.topology import chains_around, levels
from tests.support.fake_host import Sent
from tests.support.machines import ME, label, peer, ring_at, subscriber, written

# In a ring of sixteen, the node with label 01 has the children 0011 and 0101 and the parent 0.
OWN, A, Z = peer("01", ME), peer("0011", "a"), peer("0101", "z")


class Quarter:
    """Digest of the node with label 01 in a ring of sixteen."""

    def __init__(self, own: Peer = OWN, pred: Peer | None = A, succ: Peer | None = Z) -> None:
        self.own, self.pred, self.succ = own, pred, succ
        self.digest = RingDigest(ProtocolConfig())
        self.total = 0
        self.shortcuts = Shortcuts(ring_at(own.label.bits, left=pred, right=succ))
        self.shortcuts.slots = {label("0"): "r", label("1"): "s"}

    def hear(self, node: NodeId, digest: int) -> None:
        self.digest.on_digest(Digest(node, digest))

    def timeout(self) -> Sent:
        pred, succ = self.pred, self.succ
        around = [peer.label if peer is not None else None for peer in (pred, succ)]
        chains = chains_around(self.own.label, *around)

        def tick(out: Outbox) -> None:
            children, parent = self.shortcuts.tree_nodes(chains, pred, succ)
            self.total = self.digest.on_tick(self.own, children, parent, out)

        return written(tick)


def test_R14_node_sends_its_parent_its_own_weight_plus_the_sums_of_its_children() -> None:
    quarter = Quarter()
    assert quarter.timeout() == [("r", Digest(ME, OWN.weight))]
    quarter.hear("a", 5)
    quarter.hear("z", 7)
    assert quarter.timeout() == [("r", Digest(ME, (OWN.weight + 12) % CIRCLE))]


def test_R14_last_sum_of_a_child_counts_until_its_next() -> None:
    quarter = Quarter()
    quarter.hear("a", 5)
    quarter.timeout()
    assert quarter.total == (OWN.weight + 5) % CIRCLE
    quarter.timeout()
    assert quarter.total == (OWN.weight + 5) % CIRCLE
    quarter.hear("a", 6)
    quarter.timeout()
    assert quarter.total == (OWN.weight + 6) % CIRCLE


def test_R14_sum_of_a_node_that_is_not_a_child_is_ignored_and_forgotten() -> None:
    quarter = Quarter()
    quarter.hear("r", 5)  # the parent
    quarter.hear("x", 7)  # a stranger
    quarter.timeout()
    assert quarter.total == OWN.weight
    assert quarter.digest.heard == {}


def test_R14_node_under_two_child_labels_is_counted_once() -> None:
    quarter = Quarter(succ=peer("0101", "a"))
    quarter.hear("a", 5)
    quarter.timeout()
    assert quarter.total == (OWN.weight + 5) % CIRCLE


def test_R14_sums_wrap_at_two_to_the_64() -> None:
    quarter = Quarter()
    quarter.hear("a", CIRCLE - 1)
    quarter.hear("z", 3 * CIRCLE + 1)
    quarter.timeout()
    assert quarter.total == OWN.weight


def test_R14_nothing_is_sent_while_the_parent_is_unknown() -> None:
    quarter = Quarter()
    quarter.shortcuts.slots = {}
    assert quarter.timeout() == []
    quarter.shortcuts.slots = {label("0"): ME}
    assert quarter.timeout() == []
    assert quarter.total == OWN.weight


def test_R14_label_0_sends_its_digest_to_the_supervisor_only() -> None:
    root = peer("0", ME)
    quarter = Quarter(root, peer("111", "y"), peer("001", "a"))
    quarter.hear("y", 5)
    assert quarter.timeout() == []
    assert quarter.total == (root.weight + 5) % CIRCLE


def test_R14_new_label_changes_the_weight() -> None:
    quarter = Quarter()
    quarter.timeout()
    quarter.own = peer("01", "n")
    quarter.timeout()
    assert quarter.total == peer("01", "n").weight


def test_R14_strangers_cannot_fill_the_memory() -> None:
    digest = RingDigest(ProtocolConfig())
    for number in range(1000):
        digest.on_digest(Digest(f"n{number}", number))
    assert len(digest.heard) == 128
    digest.on_digest(Digest("n0", 77))
    assert digest.heard["n0"] == 77


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 33, 100])
def test_R14_label_0_computes_the_sum_over_the_roster_in_a_legitimate_ring(n: int) -> None:
    nodes = [f"n{number:03d}" for number in range(n)]
    hosts = {node: subscriber(state, node=node) for node, state in legitimate_states(nodes)}
    roster = Roster()
    for node in nodes:
        roster.add(node)
    root = hosts[nodes[0]]
    for _ in range(levels(n) + 2):
        said = [parcel for host in hosts.values() for parcel in host.tick()]
        for to, message in said:
            if isinstance(message, Digest):
                hosts[to].receive(message)
    assert root.machine.label == Label(0)
    asked: list[object] = []
    for _ in range(50):  # its neighbours are silent, so it asks (R9)
        asked += [message for _, message in root.tick() if isinstance(message, GetConfiguration)]
    assert set(asked) == {GetConfiguration(nodes[0], roster.digest())}
