"""The subscriber's machine for one topic (Algorithms 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, assert_never

from skipring.core.antientropy import AntiEntropy
from skipring.core.archive import Archive
from skipring.core.config import ProtocolConfig
from skipring.core.digest import TreeDigest
from skipring.core.effects import Effect, Left, Outbox
from skipring.core.events import (
    ConfirmRequested,
    Event,
    Flush,
    HistoryRead,
    NodeSuspected,
    PublishManyRequested,
    PublishRequested,
    Received,
    SubscribeRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.holdings import Holdings
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckAndPublish,
    CheckLabel,
    CheckTrie,
    Digest,
    GetConfiguration,
    IHave,
    Introduce,
    IntroduceShortcut,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, NodeId, Peer, TopicId
from skipring.core.publications import Publication, believed
from skipring.core.ring import Ring
from skipring.core.shortcuts import Shortcuts
from skipring.core.silence import Silence
from skipring.core.spreading import Spreading
from skipring.core.state import SilenceState, SubscriberState
from skipring.core.trie import PublicationTrie


class Subscriber:
    """One node's part in the skip ring of one topic."""

    __slots__ = (
        "_config",
        "_digest",
        "_holdings",
        "_repair",
        "_ring",
        "_rng",
        "_shortcuts",
        "_silence",
        "_spreading",
        "node",
        "wants",
    )

    def __init__(
        self,
        node: NodeId,
        *,
        topic: TopicId,
        rng: Random,
        config: ProtocolConfig,
        archive: Archive | None = None,
        wants: bool = True,
    ) -> None:
        self.node = node
        self.wants = wants  # S2: what the application wants is input, not protocol state
        self._rng = rng
        self._config = config
        self._ring = Ring(node, config.rules)
        self._shortcuts = Shortcuts(self._ring)
        self._silence = Silence(config)
        self._digest = TreeDigest(config)
        self._holdings = Holdings(topic, archive)
        self._repair = AntiEntropy(node, self._holdings, config)
        self._spreading = Spreading(self._ring, self._shortcuts, self._holdings, config)

    def handle(self, event: Event) -> list[Effect]:
        """React to one event."""
        out = Outbox()
        self._settle_before(event, out)
        match event:
            case Received():
                self._on_received(event, out)
            case Tick():
                self._on_tick(out)
            case SubscribeRequested():
                self._on_subscribe_requested(out)
            case UnsubscribeRequested():
                self._on_unsubscribe_requested(out)
            case PublishRequested() | PublishManyRequested():
                self._publish(event, out)
            case HistoryRead():
                self._repair.on_history(event, out)
            case Flush():
                self._on_flush(out)
            case ConfirmRequested():
                self._repair.ask_to_confirm(self.ring_neighbours(), out)
            case NodeSuspected():
                pass  # section 3.3: one failure detector, at the supervisor, is enough
            case _:
                assert_never(event)
        self._holdings.let_go()
        return out.effects

    def _settle_before(self, event: Event, out: Outbox) -> None:
        """Keep what has arrived, for whatever looks at it; new publications can wait in a row."""
        is_unconcerned = type(event) is Received and type(event.message) in self._UNCONCERNED
        if not is_unconcerned and type(event) not in (Flush, Tick):
            self._spreading.settle(out)

    def _on_received(self, event: Received, out: Outbox) -> None:
        kind = type(event.message)
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, event.message, out)
        elif kind in self._CARRIERS and self._takes_part:
            self._CARRIERS[kind](self, event.message, event.sender, out)
        # Else it is a request that only a supervisor understands: drop it.

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
        self._spreading.on_tick()
        if self._config.repairs:
            self._repair.on_tick(self._partners(out), self._rng, out)

    def _partners(self, out: Outbox) -> list[NodeId]:
        """With whom to compare tries in this tick (R16); nobody, while much is on its way."""
        if self._spreading.is_stirred:
            return []
        self._spreading.settle(out)
        if self._config.rules.repair_over_shortcuts:
            return self._spreading.neighbours()
        return self.ring_neighbours()

    def neighbours(self) -> list[NodeId]:
        """Everybody we have an edge to, the ring neighbours first."""
        return self._spreading.neighbours()

    def ring_neighbours(self) -> list[NodeId]:
        """The distinct ring neighbours (T16)."""
        nodes = {peer.node: None for peer in self._ring.peers()}
        return [node for node in nodes if node not in (self.node, SUPERVISOR)]

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
            self._spreading.settle(out)
            out.effects.append(Left())
            return
        if was_labelled and self._config.rules.wake:
            for node in self._spreading.neighbours():
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

    # -- publications ------------------------------------------------------------------------

    @property
    def _takes_part(self) -> bool:
        """True until we have left: one without a label may be about to get one."""
        return self.wants or self._ring.me is not None

    def _on_check(self, message: CheckTrie | CheckAndPublish, out: Outbox) -> None:
        if self._takes_part:
            self._repair.on_check(message, out)
        elif message.sender not in (self.node, SUPERVISOR):
            out.send(message.sender, RemoveConnections(self.node))  # as B7

    def _on_publications(self, message: Publications, sender: NodeId | None, out: Outbox) -> None:
        shown = believed(message.publications, opaque=self._config.takes_opaque)
        taken = self._repair.on_publications(Publications(shown, message.session), sender, out)
        self._spreading.announce(taken, sender)

    def _on_trie_equal(self, message: TrieEqual, out: Outbox) -> None:
        self._repair.on_trie_equal(message, out)

    def _publish(self, event: PublishRequested | PublishManyRequested, out: Outbox) -> None:
        requests = event.requests if isinstance(event, PublishManyRequested) else (event,)
        self._spreading.publish(requests, out)
        self._repair.note_difference()

    def _on_publish_new(self, message: PublishNew, sender: NodeId | None, out: Outbox) -> None:
        self._on_new((message.publication,), message.hops, sender, out)

    def _on_publish_many(self, message: PublishMany, sender: NodeId | None, out: Outbox) -> None:
        self._on_new(message.publications, message.hops, sender, out)

    def _on_new(
        self,
        publications: tuple[Publication, ...],
        hops: int,
        sender: NodeId | None,
        out: Outbox,
    ) -> None:
        self._spreading.on_new(publications, hops, sender, out)
        if out.effects:
            self._repair.note_difference()

    def _on_ihave(self, message: IHave, out: Outbox) -> None:
        del out
        if self._takes_part:
            self._spreading.on_ihave(message)

    def _on_want(self, message: Want, out: Outbox) -> None:
        if self._takes_part:
            self._spreading.on_want(message, out)

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
                CheckTrie: _on_check,
                CheckAndPublish: _on_check,
                TrieEqual: _on_trie_equal,
                IHave: _on_ihave,
                Want: _on_want,
            }
        )
    )

    # Of what brings publications it matters from whom it came.
    _CARRIERS: ClassVar[Mapping[type, Callable[[Subscriber, Any, NodeId | None, Outbox], None]]] = (
        MappingProxyType(
            {
                PublishNew: _on_publish_new,
                PublishMany: _on_publish_many,
                Publications: _on_publications,
            }
        )
    )

    # These do not look at what is kept, so what has arrived before them can wait.
    _UNCONCERNED: ClassVar = frozenset(
        {
            PublishNew,
            PublishMany,
            IHave,
            SetConfiguration,
            CheckLabel,
            Introduce,
            IntroduceShortcut,
            RemoveConnections,
            Digest,
        }
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

    @property
    def silence(self) -> dict[NodeId, SilenceState]:
        """How long ring neighbours have been silent (R9)."""
        return self._silence.states()

    @property
    def digests(self) -> Mapping[NodeId, int]:
        """What others have said of the sum over their parts of the ring (R14)."""
        return self._digest.heard

    @property
    def trie(self) -> PublicationTrie:
        """v.T."""
        return self._holdings.trie

    @property
    def count(self) -> int:
        """How many publications are kept; less is done for it than for the trie's length."""
        return self._holdings.count

    @property
    def publications(self) -> tuple[Publication, ...]:
        """What is stored, in the order in which it came."""
        return tuple(self.archive.publications())

    @property
    def archive(self) -> Archive:
        """Where the publications lie."""
        return self._holdings.archive

    @property
    def has_to_flush(self) -> bool:
        """True if a Flush would do something."""
        return self._spreading.has_to_flush or self._has_to_work_off

    @property
    def _has_to_work_off(self) -> bool:
        """True if we are to index and hash, now that nothing more urgent is there."""
        is_time = self._spreading.is_quiet or self._holdings.is_far_behind
        return self._config.settles_late and self._repair.is_behind and is_time

    def _on_flush(self, out: Outbox) -> None:
        self._spreading.on_flush(out)
        if self._has_to_work_off:
            self._repair.work_off()

    def settle(self) -> list[Effect]:
        """Store and index what was delivered already."""
        out = Outbox()
        self._spreading.settle(out)
        self._holdings.let_go()
        return out.effects

    def recover(self) -> None:
        """Index what lies in the archive."""
        self._holdings.recover({})

    def state(self) -> SubscriberState:
        """The machine's variables as a value."""
        return SubscriberState(
            member=self.wants,
            label=self.label,
            left=self.left,
            right=self.right,
            ring=self.ring,
            shortcuts=dict(self._shortcuts.slots),
            silence=self.silence,
            digests=dict(self.digests),
            publications=self.publications,
            hashes=self.trie.wrong_digests(),
        )

    def load(self, state: SubscriberState) -> None:
        """Take over any state, however wrong; its publications are those of the archive."""
        self.wants = state.member
        self._ring.me = Peer(state.label, self.node) if state.label is not None else None
        self._ring.neighbours = [state.left, state.right]
        self._ring.wrap = state.ring
        # Sorted: equal states must act alike, and slots that go are asked in their order.
        self._shortcuts.slots = dict(sorted(state.shortcuts.items()))
        self._silence.load(state.silence)
        self._digest.load(state.digests)
        self._holdings.recover(state.hashes)


def asks_supervisor(label: Label, rng: Random, *, rare: bool) -> bool:
    """True with probability 1/(2^(k+1) k^2), k = |label|; 2^k if not rare (action ii)."""
    k = label.length
    return rng.getrandbits(k + rare) == 0 and rng.randrange(k * k) == 0  # floats end at 2^-53
