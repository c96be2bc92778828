"""Algorithms 1 to 5 of the paper, transcribed line by line from its appendix; used by tests only.

"X ← Proc(...)" appends ``(X, "Proc", arguments)`` to ``sent``; lines are in the paper's order. The
comment "Ambiguous" marks each place where the pseudocode permits several readings or contradicts
a section, and states the reading chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from tests.paper.preliminaries import (
    LEFT,
    RIGHT,
    Trie,
    before,
    distance,
    l,
    l_inverse,
    label_at,
    less,
    not_after,
    r,
)

Node = str
Flag = Literal["CYC", "LIN"]
Sent = tuple[Node, str, tuple[Any, ...]]
SUPERVISOR = "supervisor"


class Tuple(NamedTuple):
    """(label_v, v). The label is ⊥ only if a subscriber without label introduced itself."""

    label: str | None
    node: Node


class Subscriber:
    """Subscriber u ∈ V: Algorithms 1, 2, 4 and 5."""

    def __init__(self, node: Node, trie: Trie) -> None:
        self.id = node
        self.label: str | None = None
        self.left: Tuple | None = None
        self.right: Tuple | None = None
        self.ring: Tuple | None = None
        self.shortcuts: dict[str, Node | None] = {}
        self.trie = trie
        self.sent: list[Sent] = []
        self.coin: Callable[[Fraction], bool] = lambda _probability: False
        self.choose: Callable[[Sequence[Tuple]], Tuple] = lambda options: options[0]

    def send(self, to: Node, procedure: str, *arguments: object) -> None:
        """Put a message into the channel of ``to``; ``to`` may be u itself."""
        self.sent.append((to, procedure, arguments))

    @property
    def u(self) -> Tuple:
        """Return u where the pseudocode uses it as a tuple."""
        return Tuple(self.label, self.id)

    def pair(self, label: str, node: Node) -> Tuple:
        """Return (label, node)."""
        return Tuple(label, node)

    # --- Algorithm 1: BuildList ---------------------------------------------------------

    def build_list_timeout(self) -> None:
        for side in (LEFT, RIGHT):
            neighbour: Tuple | None = getattr(self, side)
            if neighbour is None:  # Ambiguous: u.left = ⊥ is not treated; nothing to send.
                continue
            if not_after(neighbour.label, self.label, side):
                self.send(neighbour.node, "Check", self.u, neighbour.label, "LIN")
            else:  # Also if u.label = ⊥, because a comparison with ⊥ is false.
                self.send(self.id, "Linearize", neighbour)
                setattr(self, side, None)

    def check(self, sender: Tuple, label: str, flag: Flag) -> None:
        if self.label != label:
            # Ambiguous: if u.label = ⊥, the proof of Lemma 6 answers introductions with
            # RemoveConnections; the pseudocode introduces u with label ⊥.
            self.send(sender.node, "Introduce", self.u, flag)
        else:
            self.introduce(sender, flag)

    def linearize(self, v: Tuple) -> None:
        # Ambiguous: v = u is not excluded, so u can become its own neighbour.
        if self.label is None:
            self.send(v.node, "RemoveConnections", self.id)
            return
        if v.node in {w.node for w in (self.left, self.right) if w is not None}:
            for side in (LEFT, RIGHT):
                w: Tuple | None = getattr(self, side)
                if w is not None and w.node == v.node and w.label != v.label:
                    if not_after(v.label, self.label, side):
                        setattr(self, side, v)
                    else:
                        self.send(self.id, "Linearize", v)
                        setattr(self, side, None)
            return
        for side in (LEFT, RIGHT):
            w = getattr(self, side)
            # Ambiguous: u.left = ⊥; the first condition is false then, and the second one takes
            # it for smaller than each label. label_v = u.label satisfies both sides.
            if w is not None and not_after(v.label, w.label, side):
                self.send(w.node, "Linearize", v)
            elif not_after(v.label, self.label, side):
                if w is not None:
                    self.send(v.node, "Linearize", w)
                setattr(self, side, v)

    # --- Algorithm 2: BuildRing ---------------------------------------------------------

    def build_ring_timeout(self) -> None:
        if self.ring is None:
            for here, there in ((self.left, self.right), (self.right, self.left)):
                if here is None and there is not None:
                    self.send(there.node, "Introduce", self.u, "CYC")
        elif self.label is None:
            self.send(self.ring.node, "RemoveConnections", self.id)
            self.ring = None
        else:
            for side, there in ((LEFT, self.left), (RIGHT, self.right)):
                ring = self.ring
                if there is not None and ring and before(self.label, ring.label, side):
                    self.send(there.node, "Introduce", ring, "CYC")
                    self.ring = None
            if (ring := self.ring) is not None and (
                (self.left is None and less(self.label, ring.label))
                or (self.right is None and less(ring.label, self.label))
            ):
                self.send(ring.node, "Check", self.u, ring.label, "CYC")
        self.build_list_timeout()

    def introduce(self, c: Tuple, flag: Flag) -> None:
        if self.label is None:
            self.send(c.node, "RemoveConnections", self.id)
            return
        if self.ring is not None and self.ring.node == c.node and self.ring.label != c.label:
            if self.on_one_side(c, self.ring):
                self.ring = c
            else:
                # Ambiguous: the flag is missing; LIN, as where u.ring is given up below.
                self.send(self.id, "Introduce", c, "LIN")
                self.ring = None
        if flag == "LIN":
            self.linearize(c)
        elif self.ring is None:
            self.introduce_without_ring(c)
        elif self.on_one_side(c, self.ring):
            self.introduce_beside_ring(c, self.ring)
        else:
            self.send(self.id, "Introduce", c, "LIN")
            self.send(self.id, "Introduce", self.ring, "LIN")
            self.ring = None

    def on_one_side(self, c: Tuple, ring: Tuple) -> bool:
        """Return True if c and u.ring are both below or both above u."""
        return any(
            before(c.label, self.label, side) and before(ring.label, self.label, side)
            for side in (LEFT, RIGHT)
        )

    def introduce_without_ring(self, c: Tuple) -> None:
        """Execute Introduce with flag CYC and u.ring = ⊥. Ambiguous: label_v = u.label is lost."""
        for side, opposite in ((LEFT, RIGHT), (RIGHT, LEFT)):
            if before(c.label, self.label, side):
                there: Tuple | None = getattr(self, opposite)
                if there is None:
                    self.ring = c
                else:
                    self.send(there.node, "Introduce", c, "CYC")

    def introduce_beside_ring(self, c: Tuple, ring: Tuple) -> None:
        """Execute Introduce with flag CYC, c and u.ring on the same side of u."""
        self.ring, other = (c, ring) if self.is_farther(c, ring) else (ring, c)
        if c != ring:  # Otherwise {c, u.ring} \ w is empty.
            self.send(self.id, "Introduce", other, "LIN")
            # Ambiguous: the paper sends u.ring to w, which is u.ring: each w would receive itself
            # and Linearize would make it its own neighbour, against closure. Read w' for w.
            self.send(other.node, "Introduce", self.ring, "LIN")

    def is_farther(self, c: Tuple, ring: Tuple) -> bool:
        """Return True if argmax is c. Ambiguous: equal distances; u.ring stays."""
        assert self.label
        assert c.label
        assert ring.label
        return distance(c.label, self.label) > distance(ring.label, self.label)

    def remove_connections(self, v: Node) -> None:
        """Remove v from the local storage. Ambiguous: no pseudocode; shortcut labels stay."""
        for variable in (LEFT, RIGHT, "ring"):
            stored: Tuple | None = getattr(self, variable)
            if stored is not None and stored.node == v:
                setattr(self, variable, None)
        self.shortcuts = {key: None if w == v else w for key, w in self.shortcuts.items()}

    # --- Algorithm 4: BuildSR at a subscriber -------------------------------------------

    def timeout(self) -> None:
        self.build_ring_timeout()
        self.check_shortcuts()
        if self.label is None:
            self.send(SUPERVISOR, "Subscribe", self.id)
        else:
            k = len(self.label)  # Ambiguous: k is set in one branch and used in the other.
            probability = Fraction(1, 2) if self.is_minimal() else Fraction(1, 2**k * k**2)
            if self.coin(probability):
                self.send(SUPERVISOR, "GetConfiguration", self.id)
        u, w = self.level_neighbour(LEFT), self.level_neighbour(RIGHT)
        if u is not None and w is not None and u != w:
            self.send(u.node, "IntroduceShortcut", *w)
            self.send(w.node, "IntroduceShortcut", *u)

    def is_minimal(self) -> bool:
        """Return True if u thinks that u.label is minimal.

        Ambiguous: "based only on its local information"; here left, right and ring.
        """
        neighbours = [v for v in (self.left, self.right, self.ring) if v is not None]
        return not any(less(v.label, self.label) for v in neighbours)

    def neighbour(self, side: str) -> Tuple | None:
        """Return the ring neighbour on a side, "even if it is stored in v.ring" (section 3.2)."""
        direct: Tuple | None = getattr(self, side)
        if direct is None and self.ring and before(self.label, self.ring.label, side):
            return self.ring
        return direct

    def shortcut_labels(self, side: str) -> list[str]:
        """Return the shortcut labels on a side: s = 2·label_w - label_v, again while |v| < |s|."""
        w, labels = self.neighbour(side), []
        if self.label is not None and w is not None and w.label is not None:
            s = w.label
            while len(self.label) < len(s):
                s = label_at(2 * r(s) - r(self.label))
                labels.append(s)
        return labels

    def check_shortcuts(self) -> None:
        labels = {s for side in (LEFT, RIGHT) for s in self.shortcut_labels(side)}
        old, self.shortcuts = self.shortcuts, {}
        for s in sorted(labels):
            self.shortcuts[s] = old.get(s)
        # Ambiguous: a node under a label that is no longer correct is dropped; the pseudocode does
        # not say that its reference is passed on, as IntroduceShortcut does.

    def level_neighbour(self, side: str) -> Tuple | None:
        """Return the neighbour on a side in the ring of the labels of at most |v.label| bits.

        Ambiguous: "on level k = |v.label|" and, in section 3.2.2, "for |v.label| = ⌈log n⌉ the two
        ring neighbours instead of v.shortcuts". Here each side has its own: the last shortcut
        of the side, or the ring neighbour if the side has no shortcut.
        """
        labels = self.shortcut_labels(side)
        if not labels:
            return self.neighbour(side) if self.label is not None else None
        holder = self.shortcuts.get(labels[-1])
        return self.pair(labels[-1], holder) if holder is not None else None

    def set_data(self, pred: Tuple | None, label: str | None, succ: Tuple | None) -> None:
        self.label = label
        self.report_closer(pred, succ)
        self.update(pred, succ)

    def report_closer(self, pred: Tuple | None, succ: Tuple | None) -> None:
        # Ambiguous: which of the two u.ring is compared with; the one on its side of u. Section
        # 3.2.1 (iii) has ≤ and pred ≠ v where the pseudocode has <.
        below = self.ring is not None and less(self.ring.label, self.label)
        pairs = ((self.left, pred), (self.right, succ), (self.ring, succ if below else pred))
        for mine, proposed in pairs:
            if mine is not None and (proposed is None or self.is_closer(mine, proposed)):
                self.send(SUPERVISOR, "GetConfiguration", mine.node)

    def update(self, pred: Tuple | None, succ: Tuple | None) -> None:
        # Ambiguous: "Update w.r.t. pred, succ and label"; old references are overwritten. A
        # predecessor above u or a successor below u is the cyclic connection.
        self.left = pred if pred is not None and less(pred.label, self.label) else None
        self.right = succ if succ is not None and less(self.label, succ.label) else None
        self.ring = None
        if pred is not None and less(self.label, pred.label):
            self.ring = pred
        elif succ is not None and less(succ.label, self.label):
            self.ring = succ

    def is_closer(self, mine: Tuple, proposed: Tuple) -> bool:
        """Return |mine - u.label| < |proposed - u.label|; false if one of them is ⊥."""
        if not (self.label and mine.label and proposed.label):
            return False
        return distance(mine.label, self.label) < distance(proposed.label, self.label)

    def introduce_shortcut(self, label: str, v: Node) -> None:
        if label in self.shortcuts:
            old = self.shortcuts.pop(label)
            if old not in (v, None):
                self.linearize(self.pair(label, old))
            self.shortcuts[label] = v
        else:
            self.linearize(self.pair(label, v))

    # --- Algorithm 5: publications ------------------------------------------------------

    def publish_timeout(self) -> None:
        options, root = self.partners(), self.root()
        # Ambiguous: no neighbour, or a trie without root; nothing is sent then.
        if options and root is not None:
            self.send(self.choose(options).node, "CheckTrie", self.id, [root])

    def partners(self) -> list[Tuple]:
        return [v for v in (self.left, self.right, self.ring) if v is not None]

    def root(self) -> tuple[str, Any] | None:
        """Return (l_r, h_r) of the root r of T_u, if there is one."""
        found = self.trie.subtrie("")
        return (found.label, found.hash) if found is not None else None

    def publish(self, publications: Iterable[tuple[str, Any]]) -> None:
        for key, p in publications:
            if key not in self.trie.publications:
                self.trie.publications[key] = p

    def check_trie(self, sender: Node, tuples: Iterable[tuple[str, Any]]) -> None:
        for label, h in tuples:
            c = self.trie.subtrie(label)
            if c is not None and c.label == label:
                if c.hash != h and c.children:
                    pairs = [(child.label, child.hash) for child in c.children]
                    self.send(sender, "CheckTrie", self.id, pairs)
            elif c is not None:
                missing = label + str(1 - int(c.label[len(label)]))
                self.send(sender, "CheckAndPublish", self.id, [(c.label, c.hash)], missing)
            else:
                self.send(sender, "CheckAndPublish", self.id, [], label)

    def check_and_publish(self, sender: Node, tuples: list[tuple[str, Any]], pf: str) -> None:
        self.check_trie(sender, tuples)
        found = sorted(self.trie.publications.items())
        # Ambiguous: P may be empty; the message is sent nevertheless.
        self.send(sender, "Publish", [(key, p) for key, p in found if key.startswith(pf)])

    def publish_new(self, key: str, p: object) -> None:
        if key not in self.trie.publications:
            self.trie.publications[key] = p
            for v in self.flood_receivers():
                self.send(v, "PublishNew", key, p)

    def flood_receivers(self) -> list[Node]:
        """Return left, right, ring and shortcuts: a set of nodes, so each node once."""
        stored = [v.node for v in self.partners()]
        stored += [v for v in self.shortcuts.values() if v is not None]
        return list(dict.fromkeys(stored))


class Supervisor:
    """Supervisor: Algorithm 3. The database is the hash map that section 3.1 proposes."""

    def __init__(self) -> None:
        self.database: dict[str, Node | None] = {}
        self.next = 0
        self.sent: list[Sent] = []

    @property
    def n(self) -> int:
        """Return n = |database|."""
        return len(self.database)

    def send_data(self, to: Node, *data: object) -> None:
        """Send ``to ← SetData(pred, label, succ)``."""
        self.sent.append((to, "SetData", data))

    def timeout(self) -> None:
        self.check_labels()
        if self.n == 0:  # Ambiguous: "mod n" is undefined; nothing to send.
            return
        self.next = (self.next + 1) % self.n
        v = self.database[l(self.next)]
        assert v is not None
        self.get_configuration(v)

    def ring_neighbours(self, label: str) -> tuple[Tuple | None, Tuple | None]:
        """Return predecessor and successor in the ring. Ambiguous: n = 1; ⊥ then.

        Ambiguous: tuples with ⊥ before CheckLabels has removed them; they are skipped here.
        """
        ring = sorted((key for key, v in self.database.items() if v is not None), key=r)
        if len(ring) < 2:
            return None, None
        place = ring.index(label)
        pair = (ring[place - 1], ring[(place + 1) % len(ring)])
        pred, succ = (Tuple(key, str(self.database[key])) for key in pair)
        return pred, succ

    def subscribe(self, v: Node) -> None:
        if v not in self.database.values():
            # Ambiguous: l(n) may be in use in a corrupted database; the hash map overwrites it.
            label = l(self.n)
            self.database[label] = v
            pred, succ = self.ring_neighbours(label)
            self.send_data(v, pred, label, succ)
        else:
            self.get_configuration(v)

    def unsubscribe(self, v: Node) -> None:
        self.check_multiple_copies(v)
        label = self.label_of(v)
        if label is not None:
            if self.n > 1 and l_inverse(label) != self.n - 1:
                pred, succ = self.ring_neighbours(label)  # Before the change: may be w itself.
                # Ambiguous: l(n-1) may be missing in a corrupted database; only removed then.
                w = self.database.pop(l(self.n - 1), None)
                del self.database[label]
                if w is not None:
                    self.database[label] = w
                    self.send_data(w, pred, label, succ)
            else:
                del self.database[label]
        self.send_data(v, None, None, None)

    def get_configuration(self, u: Node) -> None:
        # Section 3.2.1 integrates an unrecorded u; the pseudocode sends (⊥, ⊥, ⊥). The latter.
        self.check_multiple_copies(u)
        label = self.label_of(u)
        if label is not None:
            pred, succ = self.ring_neighbours(label)
            self.send_data(u, pred, label, succ)  # The paper has (label_v, v) for label.
        else:
            self.send_data(u, None, None, None)

    def label_of(self, v: Node) -> str | None:
        """Return label_v with (label_v, v) ∈ database, or ⊥."""
        return next((key for key, w in self.database.items() if w == v), None)

    def check_multiple_copies(self, v: Node) -> None:
        rem = False
        # Section 3.1 keeps "the lowest label". Ambiguous: by l⁻¹ or by r; l⁻¹ here.
        for label in sorted(self.database, key=l_inverse):
            if not rem and self.database[label] == v:
                rem = True
            elif self.database[label] == v:
                del self.database[label]

    def check_labels(self) -> None:
        for label in [key for key, v in self.database.items() if v is None]:
            del self.database[label]
        for i in range(self.n):
            if l(i) not in self.database:
                j = max(self.database, key=l_inverse)
                self.database[l(i)] = self.database.pop(j)
