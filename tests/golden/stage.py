"""Transcripts: commands to a world, and the messages that follow.

A transcript is a list of blocks with empty lines between them. A block has commands and remarks
(from ``#`` to the end of the line), then, if messages follow, a line of dashes and the messages.
Messages are delivered first in, first out, and no node asks the supervisor by chance unless a
command requests it, so the same commands always produce the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.config import Mode, Preset, ProtocolConfig, Rule, Spread
from skipring.core.events import Overwritten
from skipring.core.labels import Label
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.state import SubscriberState, SupervisorState
from skipring.sim.engine import World
from skipring.world.legitimacy import Layer, census
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.batches import batch
from tests.support.conversations import (
    peer_or_none,
    publication_text,
    sentence,
    standing_ring,
    text_of,
)
from tests.support.machines import Scripted

EDGES: Final = ("left", "right", "ring")
NO_SUBSCRIBERS: Final = Snapshot(subscribers={})
DASHES: Final = "----"
CALM_ROUNDS: Final = 12  # more than log n + 4 in a ring of sixteen

ASK, REFRAIN = 0, 1  # random values with which a node asks the supervisor, and with which not


def played(transcript: str) -> str:
    """Run the commands of a transcript; return it with the current output."""
    stage = Stage()
    blocks = ["\n".join(_played_block(block, stage)) for block in _blocks(transcript)]
    return "\n\n".join(blocks) + "\n"


def _blocks(transcript: str) -> Iterator[list[str]]:
    for is_empty, lines in groupby(transcript.splitlines(), key=lambda line: not line.strip()):
        if not is_empty:
            yield list(lines)


def _played_block(block: list[str], stage: Stage) -> Iterator[str]:
    commands = block[: block.index(DASHES)] if DASHES in block else block
    yield from commands
    answers = [line for command in commands for line in stage.obey(command)]
    if answers or DASHES in block:
        yield DASHES
        yield from answers or ["(no message)"]


class Stage:
    """World of one transcript."""

    def __init__(self) -> None:
        self._luck = Scripted(REFRAIN)
        self._world = self._world_of(NO_SUBSCRIBERS, ProtocolConfig())

    def _world_of(self, start: Snapshot, settings: ProtocolConfig) -> World:
        world = World(replace(start, subscribers={}), seed=0, config=settings)
        world.rng = self._luck
        for node, state in start.subscribers.items():
            world.add(node, state)
        return world

    def obey(self, command: str) -> list[str]:
        """Run a command; return its output, line by line."""
        name, *arguments = command.partition("#")[0].split() or ("",)
        return list(COMMANDS[name](self, *arguments)) if name else []

    # -- initial state; no message is sent ---------------------------------------------------

    def mode(self, mode: str, *without: str) -> Iterator[str]:
        """``mode fast without R14``: the rules of an empty world."""
        config = ProtocolConfig.of(Mode(mode), map(Rule, without[1:]), preset=Preset.EAGER)
        self._world = self._world_of(NO_SUBSCRIBERS, config)
        yield from ()

    def ring(self, *nodes: NodeId) -> Iterator[str]:
        """``ring a b c``: SR(3), the nodes in the order of l."""
        self._world = self._world_of(standing_ring(nodes), self._world.config)
        yield from ()

    def database(self, *entries: str) -> Iterator[str]:
        """``database a@0 b@1``: the database of the supervisor."""
        records = (entry.partition("@") for entry in entries)
        database = tuple((bits, node if node != "-" else None) for node, _, bits in records)
        self._world.supervisor.handle(Overwritten(SupervisorState(database=database)))
        yield from ()

    def set(self, node: NodeId, *assignments: str) -> Iterator[str]:
        """``set a right=b@11 01=c``: a subscriber's variables, shortcuts by their label."""
        machine = self._world.subscribers[node]
        state = machine.state()
        for assignment in assignments:
            name, _, value = assignment.partition("=")
            if name in EDGES:
                state = replace(state, **{name: peer_or_none(value)})
            else:
                slots = state.shortcuts | {Label.parse(name): None if value == "-" else value}
                state = replace(state, shortcuts=slots)
        machine.handle(Overwritten(state))
        yield from ()

    def spread(self, way: str) -> Iterator[str]:
        """``spread tree``: the kind of broadcast of the next ring."""
        settings = replace(self._world.config, spread=Spread(way))
        self._world = self._world_of(NO_SUBSCRIBERS, settings)
        yield from ()

    def hold(self, node: NodeId, *texts: str) -> Iterator[str]:
        """``hold a red blue``: a node has these own publications, and no other node has them."""
        publications = tuple(
            batch(text.encode(), publisher=node, first=first, topic=self._world.topic)
            for first, text in enumerate(texts)
        )
        state = self._world.subscribers[node].state()
        self._world.add(node, replace(state, publications=publications))
        yield from ()

    def calm(self) -> Iterator[str]:
        """``calm``: Timeouts without output, until all nodes regard their view as stable."""
        for _ in range(CALM_ROUNDS):
            for node in self._world.processes():
                self._world.tick(node)
            self._world.channels.clear()
        yield from ()

    def scramble(self, seed: str) -> Iterator[str]:
        """``scramble 7``: every subscriber's label and edges become arbitrary."""
        rng, subscribers = Random(f"scramble/{seed}"), self._world.subscribers
        for node in sorted(subscribers):
            edges = {name: self._any_peer(rng) for name in EDGES}
            subscribers[node].handle(Overwritten(SubscriberState(label=_any_label(rng), **edges)))
        yield from self.show(*sorted(subscribers))

    def _any_peer(self, rng: Random) -> Peer:
        return Peer(_any_label(rng), rng.choice(sorted(self._world.subscribers)))

    # -- events ------------------------------------------------------------------------------

    def subscribe(self, *nodes: NodeId) -> Iterator[str]:
        """``subscribe a b``: the applications ask to be members."""
        for node in nodes:
            yield from self._heard_from(lambda node=node: self._world.subscribe(node))

    def unsubscribe(self, *nodes: NodeId) -> Iterator[str]:
        """``unsubscribe a b``: the applications ask to leave."""
        for node in nodes:
            yield from self._heard_from(lambda node=node: self._world.unsubscribe(node))

    def publish(self, node: NodeId, text: str) -> Iterator[str]:
        """``publish a red``: the application at a node publishes."""
        yield from self._heard_from(lambda: self._world.publish(node, text.encode()))

    def tick(self, node: NodeId, *asking: str) -> Iterator[str]:
        """``tick a``, ``tick a asking``: a Timeout, without and with a request by chance."""
        self._luck.answer = ASK if asking == ("asking",) else REFRAIN
        yield from self._heard_from(lambda: self._world.tick(node))
        self._luck.answer = REFRAIN

    def crash(self, node: NodeId) -> Iterator[str]:
        """``crash c``: the node crashes without a message."""
        self._world.crash(node)
        yield from ()

    def suspect(self, node: NodeId) -> Iterator[str]:
        """``suspect c``: the supervisor's failure detector suspects a node."""
        yield from self._heard_from(lambda: self._world.suspect(node))

    def deliver(self, *to: str) -> Iterator[str]:
        """``deliver``, ``deliver to a``: the messages in flight; replies are indented."""
        channels = self._world.channels
        now = [parcel for parcel in channels if not to or parcel.to == to[1]]
        channels[:] = [parcel for parcel in channels if parcel not in now]
        for parcel in now:
            yield _line(parcel)
            if parcel.to in self._world.crashed:
                yield f"    ({parcel.to} is dead)"
            answers = self._heard_from(lambda parcel=parcel: self._world.deliver(parcel))
            yield from (f"    {line}" for line in answers)

    def rounds(self, count: str) -> Iterator[str]:
        """``rounds 3``: all in flight is delivered, then all run their Timeout; three times."""
        world = self._world
        for _ in range(int(count)):
            world.sent.clear()
            now, world.channels[:] = list(world.channels), []
            for parcel in now:
                world.deliver(parcel)
            for node in (SUPERVISOR, *sorted(world.subscribers)):
                world.tick(node)
            world.end_round()
            yield f"round {world.round}: {self._outlook()}"

    def _outlook(self) -> str:
        sent = sorted((kind.__name__, count) for kind, count in self._world.sent.items())
        wrong = census(self._world)
        faults = [f"{layer} {wrong[layer]}" for layer in Layer if wrong[layer]]
        verdict = f"wrong: {', '.join(faults)}" if faults else "legitimate"
        return f"{', '.join(f'{count} {name}' for name, count in sent)}; {verdict}"

    def _heard_from(self, act: Callable[[], None]) -> Iterator[str]:
        """Run an action; return the messages that it sends."""
        channels = self._world.channels
        known = len(channels)
        act()
        return (_line(parcel) for parcel in channels[known:])

    # -- output ------------------------------------------------------------------------------

    def show(self, *nodes: NodeId) -> Iterator[str]:
        """``show``, ``show a supervisor``: the variables."""
        for node in nodes or self._world.processes():
            yield f"{node}: {self._variables(node)}"

    def _variables(self, node: NodeId) -> str:
        if node == SUPERVISOR:
            entries = [f"{who or '-'}@{bits}" for bits, who in self._world.roster.database()]
            return " ".join(entries) or "no node recorded"
        seen = self._world.subscribers[node]
        edges = " ".join(f"{name}={text_of(getattr(seen, name))}" for name in EDGES)
        slots = "".join(f" {slot}={who or '-'}" for slot, who in sorted(seen.shortcuts.items()))
        held = "".join(f" {publication_text(each)}" for each in seen.batches())
        return f"label={text_of(seen.label)} {edges}{slots}{' holds' if held else ''}{held}"


def _any_label(rng: Random) -> Label:
    return Label.nth(rng.randrange(16))


def _line(parcel: Parcel) -> str:
    return f"{parcel.sender} -> {parcel.to}  {sentence(parcel.message)}"


COMMANDS: Final[Mapping[str, Callable[..., Iterator[str]]]] = {
    act.__name__: act
    for act in (
        *(Stage.mode, Stage.spread, Stage.ring, Stage.database, Stage.set, Stage.scramble),
        *(Stage.hold, Stage.calm, Stage.publish),
        *(Stage.subscribe, Stage.unsubscribe, Stage.tick, Stage.crash, Stage.suspect),
        *(Stage.deliver, Stage.rounds, Stage.show),
    )
}
