"""The subscriber's machine for one topic (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, assert_never

from skipring.core.config import ProtocolConfig
from skipring.core.digest import TreeDigest
from skipring.core.effects import Effect, Left, Outbox
from skipring.core.events import (
    Event,
    NodeSuspected,
    Received,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Digest,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, NodeId, Peer
from skipring.core.publications import Publication
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts
from skipring.core.silence import Silence
from skipring.core.state import SubscriberState


class Subscriber:
    """One node's part in the skip ring of one topic."""

    __slots__ = (
        "_config",
        "_digest",
        "_ring",
        "_rng",
        "_shortcuts",
        "_silence",
        "node",
        "publications",
        "wants",
    )

    def __init__(
        self, node: NodeId, *, rng: Random, config: ProtocolConfig, wants: bool = True
    ) -> None:
        self.node = node
        self.wants = wants  # S2: what the application wants is input, not protocol state
        self._rng = rng
        self._config = config
        self._ring = Ring(node, config.rules)
        self._shortcuts = Shortcuts(self._ring)
        self._silence = Silence(config)
        self._digest = TreeDigest(config)
        self.publications: tuple[Publication, ...] = ()

    def handle(self, event: Event) -> list[Effect]:
        """React to one event."""
        out = Outbox()
        match event:
            case Received():
                handler = self._HANDLERS.get(type(event.message))
                if handler is not None:  # a request that only a supervisor understands: drop it
                    handler(self, event.message, out)
            case Tick():
                self._on_tick(out)
            case SubscribeRequested():
                self._on_subscribe_requested(out)
            case UnsubscribeRequested():
                self._on_unsubscribe_requested(out)
            case NodeSuspected():
                pass  # section 3.3: one failure detector, at the supervisor, is enough
            case _:
                assert_never(event)
        return out.effects

    # -- periodic actions ------------------------------------------------------------------

    def _on_tick(self, out: Outbox) -> None:
        """Timeout."""
        me = self._ring.me
        if me is None:
            self._on_tick_unlabelled(out)
            return
        if not self.wants:
            out.send(SUPERVISOR, Unsubscribe(self.node))  # S2: until we are let go
        ring, rules = self._ring, self._config.rules
        ring.on_tick(me, out)
        pred, succ = ring.pred, ring.succ
        chains = self._shortcuts.on_tick(me, pred, succ, out)
        digest = None
        if rules.digest:
            total = self._digest.on_tick(me, chains, self._shortcuts, pred, succ, out)
            digest = total if me.label.position == 0 else None  # R14: only the root's goes up
        alarmed = rules.silence and self._silence.on_tick(ring.peers())
        if self._asks_by_chance(me.label) or alarmed:
            out.send(SUPERVISOR, GetConfiguration(self.node, digest))

    def _on_tick_unlabelled(self, out: Outbox) -> None:
        """Without a label there is nothing to do but to ask for one (action i, B8)."""
        if self.wants:
            out.send(SUPERVISOR, Subscribe(self.node))
        else:
            self._forget_all()

    def _asks_by_chance(self, label: Label) -> bool:
        """Actions (ii) and (iv): who seems minimal asks every other time, others rarely (B14)."""
        if self._ring.neighbours[LEFT] is None:
            return self._rng.getrandbits(1) == 0
        return asks_supervisor(label, self._rng, rare=self._config.rules.rare_requests)

    # -- what the application wants --------------------------------------------------------

    def _on_subscribe_requested(self, out: Outbox) -> None:
        self.wants = True
        if self._ring.me is None:
            out.send(SUPERVISOR, Subscribe(self.node))

    def _on_unsubscribe_requested(self, out: Outbox) -> None:
        self.wants = False
        if self._ring.me is None:
            self._forget_all()
        # Without a label we may be recorded all the same: a Subscribe may be on its way.
        out.send(SUPERVISOR, Unsubscribe(self.node))

    # -- messages --------------------------------------------------------------------------

    def _on_set_configuration(self, message: SetConfiguration, out: Outbox) -> None:
        """SetData (Algorithm 4)."""
        if message.label is None:
            self._on_unrecorded(out)
        elif not self.wants:
            out.send(SUPERVISOR, Unsubscribe(self.node))  # S2
        else:
            self._ring.configure(message.label, message, out)
            named = (message.pred, message.succ)
            self._silence.confirm(peer.node for peer in named if peer is not None)

    def _on_unrecorded(self, out: Outbox) -> None:
        """The supervisor does not know us: go if we wanted to, else subscribe at once (S2)."""
        was_labelled = self._ring.me is not None
        self._ring.me = None
        if not self.wants:
            self._forget_all()
            out.effects.append(Left())
            return
        if was_labelled and self._config.rules.wake:
            nodes = dict.fromkeys(
                [*(peer.node for peer in self._ring.peers()), *self._shortcuts.nodes()]
            )
            for node in nodes:
                if node not in (self.node, SUPERVISOR):
                    out.ask(node)  # R11: they may be as unrecorded as we are
        out.send(SUPERVISOR, Subscribe(self.node))

    def _on_check_label(self, message: CheckLabel, out: Outbox) -> None:
        self._silence.hear(message.sender.node)
        self._ring.on_check_label(message, out)
        if not self.wants and self._ring.me is None:
            # Somebody still counts on us, perhaps because the supervisor does (S2).
            out.send(SUPERVISOR, Unsubscribe(self.node))

    def _on_introduce(self, message: Introduce, out: Outbox) -> None:
        if message.first_hand:
            self._silence.hear(message.peer.node)
        self._ring.introduce(message.peer, message.link, out, first_hand=message.first_hand)

    def _on_introduce_shortcut(self, message: IntroduceShortcut, out: Outbox) -> None:
        self._shortcuts.on_introduce_shortcut(message.peer, out)

    def _on_remove_connections(self, message: RemoveConnections, out: Outbox) -> None:
        del out
        self._ring.on_remove_connections(message.node)
        self._shortcuts.on_remove_connections(message.node)

    def _on_digest(self, message: Digest, out: Outbox) -> None:
        del out
        if self._config.rules.digest:
            self._digest.on_digest(message)

    # The hot path: one look-up from the type of a message to its method.
    _HANDLERS: ClassVar[Mapping[type, Callable[[Subscriber, Any, Outbox], None]]] = (
        MappingProxyType(
            {
                SetConfiguration: _on_set_configuration,
                CheckLabel: _on_check_label,
                Introduce: _on_introduce,
                IntroduceShortcut: _on_introduce_shortcut,
                RemoveConnections: _on_remove_connections,
                Digest: _on_digest,
            }
        )
    )

    def _forget_all(self) -> None:
        self._ring.forget_all()
        self._shortcuts.forget_all()

    # -- state as a value ------------------------------------------------------------------

    @property
    def member(self) -> bool:
        """Whether the application wants this node in the ring."""
        return self.wants

    @property
    def label(self) -> Label | None:
        """v.label."""
        return self._ring.me.label if self._ring.me is not None else None

    @property
    def left(self) -> Peer | None:
        """v.left."""
        return self._ring.neighbours[LEFT]

    @property
    def right(self) -> Peer | None:
        """v.right."""
        return self._ring.neighbours[RIGHT]

    @property
    def ring(self) -> Peer | None:
        """v.ring: the wrap edge."""
        return self._ring.wrap

    @property
    def shortcuts(self) -> Mapping[Label, NodeId | None]:
        """v.shortcuts."""
        return self._shortcuts.slots

    def state(self) -> SubscriberState:
        """The machine's variables as a value."""
        return SubscriberState(
            member=self.wants,
            label=self.label,
            left=self.left,
            right=self.right,
            ring=self.ring,
            shortcuts=dict(self._shortcuts.slots),
            silence=self._silence.states(),
            digests=dict(self._digest.heard),
            publications=self.publications,
        )

    def load(self, state: SubscriberState) -> None:
        """Take over any state, however wrong."""
        self.wants = state.member
        self._ring.me = Peer(state.label, self.node) if state.label is not None else None
        self._ring.neighbours = [state.left, state.right]
        self._ring.wrap = state.ring
        # Sorted: equal states must act alike, and slots that go are asked in their order.
        self._shortcuts.slots = dict(sorted(state.shortcuts.items()))
        self._silence.load(state.silence)
        self._digest.load(state.digests)
        self.publications = state.publications


def asks_supervisor(label: Label, rng: Random, *, rare: bool) -> bool:
    """True with probability 1/(2^(k+1) k^2), k = |label|; 2^k if not rare (action ii)."""
    k = label.length
    return rng.getrandbits(k + rare) == 0 and rng.randrange(k * k) == 0  # floats end at 2^-53
