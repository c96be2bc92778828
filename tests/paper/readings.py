"""Readings of the pseudocode in mode ``paper`` of the core, one by one, over the transcription.

The core departs from the literal transcription in the places that ``READINGS`` lists. Each entry
can be left out, which shows that the two differ there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from tests.paper.preliminaries import LEFT, RIGHT, Tied, Trie, label_at, less, not_after, r
from tests.paper.pseudocode import SUPERVISOR, Flag, Node, Subscriber, Supervisor, Tuple

# Name -> the decision, and the line of the paper that it interprets.
READINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "B2": "0013: references to the node itself or to the supervisor are dropped",
        "B4": "0013: Introduce without a flag is LIN, and ends the procedure",
        "B6": "0013: a node with only ring linearizes a copy of it",
        "B7": "0013: a node without a label answers Check with RemoveConnections",
        "B8": "0013: a node without a label does nothing but Subscribe",
        "B11": "0013: action (iii) measures on the circle, in both directions",
        "B12": "0013: action (iii) has ≤, excludes pred and succ, and reports each node once",
        "B14": "0013: a node without a left neighbour thinks that its label is minimal",
        "stale twin": "0013: a neighbour under two labels stays under the one that it states",
        "own messages": "0061: a node executes its messages to itself at once",
        "equal wrap": "0061: a wrap edge with the label of u is on the side of its id",
        "sides first": "0061: Timeout linearizes neighbours on a wrong side before the rest",
        "own side": "0061: Linearize compares v with the neighbour on its own side only",
        "both sides": "0061: a neighbour that takes the label of u is stored on both sides",
        "one name": "0061: Linearize(v) is sent as Introduce(v, LIN)",
        "merging": "0061: without B13 a configuration is merged, as in the proof of Ring Closure",
        "alone": "0061: a configuration without pred has no succ",
        "equal hash": "0061: an equal hash ends a comparison, also under a longer label",
        "C2": "0014: shortcut labels double a distance on the circle, below half of it",
        "C3": "0014: the holder of a chain label is a ring neighbour, else a shortcut",
        "C4": "0014: a node sends no introduction to itself, and none of two equal nodes",
        "C5": "0014: holders of dropped slots are linearized",
        "S2": "0015: an unrecorded node keeps its references and subscribes at once",
        "S3": "0010: all repairs run before each event",
        "S7": "0010: Unsubscribe changes the database, then looks up the neighbours",
        "T2": "0021: an empty trie has a root, too",
        "T16": "0024: a node does not compare tries with itself or the supervisor",
    }
)


DEPTH_MAX: Final = 20


class ReadSubscriber(Subscriber):
    """Transcription with some of the core's readings."""

    def __init__(
        self, node: Node, trie: Trie, readings: frozenset[str], empty_root: object
    ) -> None:
        super().__init__(node, trie)
        self.readings = readings
        self.empty_root = empty_root
        self.depth = 0  # of nested messages to itself
        self.around: Mapping[str, Tuple | None] | None = (
            None  # from check_shortcuts to the end of Timeout
        )

    def pair(self, label: str, node: Node) -> Tuple:
        """Return a tuple whose label is tied to its node."""
        tied = Tied(label)
        tied.node = node
        tied.is_ordered = node == self.id and "equal wrap" in self.readings
        return Tuple(tied, node)

    def step(self, procedure: str, *arguments: Any) -> None:  # noqa: ANN401
        """Execute a procedure, then its messages to this node itself (own messages)."""
        begin = len(self.sent)
        getattr(self, procedure)(*arguments)
        if "own messages" not in self.readings:
            return
        new, self.sent[begin:] = self.sent[begin:], []
        self.depth += 1
        for to, name, values in new:
            # Without B2, a node that stores itself can send itself a message in each step.
            if to == self.id and name in _OWN and self.depth < DEPTH_MAX:
                self.step(_OWN[name], *values)
            else:
                self.send(to, name, *values)
        self.depth -= 1

    def is_void(self, node: Node) -> bool:
        """Return True for a reference that B2 drops."""
        return "B2" in self.readings and node in (self.id, SUPERVISOR)

    def drop_void(self) -> None:
        """Drop stored references to the node itself or to the supervisor (B2)."""
        for variable in (LEFT, RIGHT, "ring"):
            stored: Tuple | None = getattr(self, variable)
            if stored is not None and self.is_void(stored.node):
                setattr(self, variable, None)

    # --- Algorithms 1 and 2 -------------------------------------------------------------

    def check(self, sender: Tuple, label: str, flag: Flag) -> None:
        if self.is_void(sender.node):
            return
        if self.label is None and "B7" in self.readings:
            self.send(sender.node, "RemoveConnections", self.id)
        else:
            super().check(sender, label, flag)

    def linearize(self, v: Tuple) -> None:
        if self.is_void(v.node):
            return
        if self.label is not None:
            self.drop_void()
            if "stale twin" in self.readings and v in (self.left, self.right):
                self.forget(v.node, other_than=v.label)
                return
            if "both sides" in self.readings and v.label == self.label:
                self.forget(v.node, other_than=None)
        near = {w.node for w in (self.left, self.right) if w is not None}
        if self.label is None or v.node in near or "own side" not in self.readings:
            self.linearize_untied(v)
            return
        hidden = {
            side: getattr(self, side)
            for side in (LEFT, RIGHT)
            if not not_after(v.label, self.untied, side)
        }
        for side in hidden:
            setattr(self, side, None)
        self.linearize_untied(v)
        for side, w in hidden.items():
            setattr(self, side, w)

    def forget(self, node: Node, other_than: str | None) -> None:
        """Forget a neighbour under every label but one."""
        for side in (LEFT, RIGHT):
            w: Tuple | None = getattr(self, side)
            if w is not None and w.node == node and w.label != other_than:
                setattr(self, side, None)

    @property
    def untied(self) -> str | None:
        """Return u.label without the order of ``equal wrap``, which is for ring only."""
        return str(self.label) if self.label is not None else None

    def linearize_untied(self, v: Tuple) -> None:
        """Execute Linearize with labels compared as in the paper."""
        tied, self.label = self.label, self.untied
        super().linearize(v)
        self.label = tied

    def build_list_timeout(self) -> None:
        tied, self.label = self.label, self.untied
        super().build_list_timeout()
        self.label = tied

    def introduce(self, c: Tuple, flag: Flag) -> None:
        if self.is_void(c.node):
            return
        if self.label is not None:
            self.drop_void()
            ring = self.ring
            has_moved = ring is not None and ring.node == c.node and ring.label != c.label
            is_of_line = ring is not None and has_moved and not self.on_one_side(c, ring)
            if is_of_line and "B4" in self.readings:
                self.ring = None
                self.linearize(c)
                return
        super().introduce(c, flag)

    def is_farther(self, c: Tuple, ring: Tuple) -> bool:
        is_equal = c.label == ring.label and "equal wrap" in self.readings
        return is_equal or super().is_farther(c, ring)

    def build_ring_timeout(self) -> None:
        self.drop_void()
        if "sides first" in self.readings:
            misplaced = []
            for side in (LEFT, RIGHT):
                w: Tuple | None = getattr(self, side)
                if w is not None and not not_after(w.label, self.untied, side):
                    setattr(self, side, None)
                    misplaced.append(w)
            for w in misplaced:
                self.step("linearize", w)
        ring = self.ring
        is_pair = ring is not None and self.left is None and self.right is None
        if ring is not None and is_pair and self.label is not None and "B6" in self.readings:
            self.step("linearize", ring)
            # As for the end of a line, which the node was until now.
            self.send(ring.node, "Check", self.u, ring.label, "CYC")
            self.build_list_timeout()
            return
        super().build_ring_timeout()

    # --- Algorithm 4 --------------------------------------------------------------------

    def timeout(self) -> None:
        self.around = None
        if self.label is None and "B8" in self.readings:
            self.send(SUPERVISOR, "Subscribe", self.id)
            return
        super().timeout()
        self.around = None

    def is_minimal(self) -> bool:
        return self.left is None if "B14" in self.readings else super().is_minimal()

    def shortcut_labels(self, side: str) -> list[str]:
        if "C2" not in self.readings:
            return super().shortcut_labels(side)
        w, labels = self.neighbour(side), list[str]()
        if self.label is None or w is None or w.label is None:
            return labels
        sign = -1 if side == LEFT else 1
        s, away = str(w.label), sign * (r(w.label) - r(self.label)) % 1
        while len(s) > len(self.label) and 0 < away < Fraction(1, 2):
            away *= 2
            s = label_at(r(self.label) + sign * away)
            labels.append(s)
        return labels

    def neighbour(self, side: str) -> Tuple | None:
        return self.around[side] if self.around is not None else super().neighbour(side)

    def check_shortcuts(self) -> None:
        old = dict(self.shortcuts)
        if "C5" in self.readings:  # Linearizing the old holders changes the neighbours.
            self.around = {side: self.neighbour(side) for side in (LEFT, RIGHT)}
        super().check_shortcuts()
        if self.label in self.shortcuts and "C2" in self.readings:
            del self.shortcuts[str(self.label)]
        if "C5" in self.readings:
            for label, holder in old.items():
                if holder is not None and label not in self.shortcuts:
                    self.step("linearize", self.pair(label, holder))
        for label, holder in self.shortcuts.items():
            if holder is not None and self.is_void(holder):
                self.shortcuts[label] = None

    def level_neighbour(self, side: str) -> Tuple | None:
        found = self.chain_end(side)
        if found is not None and "C4" in self.readings:
            other = self.chain_end(RIGHT if side == LEFT else LEFT)
            if found.node == self.id or (other is not None and other.node == found.node):
                return None
        return found

    def chain_end(self, side: str) -> Tuple | None:
        """Return the last node of the chain on a side (C3)."""
        labels = self.shortcut_labels(side)
        if labels and "C3" in self.readings:
            for v in (self.neighbour(side), self.neighbour(RIGHT if side == LEFT else LEFT)):
                if v is not None and v.label == labels[-1]:
                    return v
        return super().level_neighbour(side)

    def set_data(self, pred: Tuple | None, label: str | None, succ: Tuple | None) -> None:
        if label is None and "S2" in self.readings:
            if self.label is not None:
                for node in dict.fromkeys(v.node for v in self.direct()):
                    self.send(SUPERVISOR, "GetConfiguration", node)
            self.label = None
            self.send(SUPERVISOR, "Subscribe", self.id)
            return
        pred = None if pred is not None and self.is_void(pred.node) else pred
        succ = None if succ is not None and self.is_void(succ.node) else succ
        if pred is None and "alone" in self.readings:
            succ = None
        super().set_data(pred, label, succ)

    def direct(self) -> list[Tuple]:
        """Return left, right and ring, except those that B2 drops."""
        stored = [v for v in (self.left, self.right, self.ring) if v is not None]
        return [v for v in stored if not self.is_void(v.node)]

    def report_closer(self, pred: Tuple | None, succ: Tuple | None) -> None:
        strict = "B12" not in self.readings
        done = set() if strict else {v.node for v in (pred, succ) if v is not None}
        below = self.ring is not None and less(self.ring.label, self.label)
        pairs = ((self.left, pred), (self.right, succ), (self.ring, succ if below else pred))
        for mine, proposed in pairs:
            if mine is None or mine.node in done or self.is_void(mine.node):
                continue
            if not strict:
                done.add(mine.node)
            if "B11" in self.readings:
                is_alone = pred is None or succ is None or self.label is None
                closer = is_alone or self.is_inside(mine, pred, succ)
            else:
                closer = proposed is None or self.is_closer(mine, proposed)
            if closer:
                self.send(SUPERVISOR, "GetConfiguration", mine.node)

    def is_closer(self, mine: Tuple, proposed: Tuple) -> bool:
        if "B12" in self.readings and mine.label and proposed.label and self.label:
            own = r(self.label)
            return abs(r(mine.label) - own) <= abs(r(proposed.label) - own)
        return super().is_closer(mine, proposed)

    def is_inside(self, mine: Tuple, pred: Tuple | None, succ: Tuple | None) -> bool:
        """Return True if mine is closer than pred to the left, or than succ to the right (B11)."""
        for sign, proposed in ((-1, pred), (1, succ)):
            assert self.label
            assert mine.label
            assert proposed
            assert proposed.label
            one, two = (
                sign * (r(each) - r(self.label)) % 1 for each in (mine.label, proposed.label)
            )
            if one < two or (one == two and "B12" in self.readings):
                return True
        return False

    def update(self, pred: Tuple | None, succ: Tuple | None) -> None:
        if "merging" not in self.readings or self.label is None:
            super().update(pred, succ)
            return
        for v in (pred, succ):
            if v is not None:
                self.step("linearize", v)

    def introduce_shortcut(self, label: str, v: Node) -> None:
        if self.is_void(v):
            return
        if self.label is None and "B7" in self.readings:
            self.send(v, "RemoveConnections", self.id)
        else:
            super().introduce_shortcut(label, v)

    # --- Algorithm 5 --------------------------------------------------------------------

    def publish_timeout(self) -> None:
        if self.label is None and "B8" in self.readings:
            return
        super().publish_timeout()

    def partners(self) -> list[Tuple]:
        return self.direct()

    def check_trie(self, sender: Node, tuples: Iterable[tuple[str, Any]]) -> None:
        if sender in (self.id, SUPERVISOR) and "T16" in self.readings:
            return
        for label, h in tuples:
            c = self.trie.subtrie(label)
            is_empty = c is None and (label, h) == ("", self.empty_root)
            is_equal = c is not None and c.label != label and c.hash == h
            if (is_empty and "T2" in self.readings) or (is_equal and "equal hash" in self.readings):
                continue
            super().check_trie(sender, [(label, h)])

    def check_and_publish(self, sender: Node, tuples: list[tuple[str, Any]], pf: str) -> None:
        if sender not in (self.id, SUPERVISOR) or "T16" not in self.readings:
            super().check_and_publish(sender, tuples, pf)

    def root(self) -> tuple[str, Any] | None:
        found = super().root()
        return ("", self.empty_root) if found is None and "T2" in self.readings else found

    def flood_receivers(self) -> list[Node]:
        return [v for v in super().flood_receivers() if not self.is_void(v)]


# Procedure of a message -> its method, for messages of a node to itself.
_OWN: Final = {"Linearize": "linearize", "Introduce": "introduce"}


class ReadSupervisor(Supervisor):
    """Transcription of the supervisor with some of the core's readings."""

    def __init__(self, readings: frozenset[str]) -> None:
        super().__init__()
        self.readings = readings

    def step(self, procedure: str, *arguments: Any) -> None:  # noqa: ANN401
        """Repair the database (S3), then execute a procedure."""
        if "S3" in self.readings:
            for node in set(self.database.values()) - {None}:
                self.check_multiple_copies(str(node))
            self.check_labels()
        if "B2" not in self.readings or SUPERVISOR not in arguments:
            getattr(self, procedure)(*arguments)

    def unsubscribe(self, v: Node) -> None:
        label, sent = self.label_of(v), len(self.sent)
        super().unsubscribe(v)
        if "S7" in self.readings and label is not None and len(self.sent) == sent + 2:
            w, procedure, (_, label_w, _) = self.sent[sent]
            pred, succ = self.ring_neighbours(label_w)
            self.sent[sent] = (w, procedure, (pred, label_w, succ))
