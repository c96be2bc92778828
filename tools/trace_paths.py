"""Trace of the paths through a node: their calls, modules and classes.

``python tools/trace_paths.py`` starts a supervisor and three nodes as processes and a fourth node
in this process; sys.setprofile traces only this one. Only Python functions of skipring in the
thread of the event loop count: not comprehensions, constructors of msgspec, or the thread that
commits. Each resumption of a coroutine is a call. Publish, receive, tick and scrub are sampled: a
path has the functions that more than half of its samples call, so procedures of every eighth tick
do not count. A tick also scrubs a slice of the 6,000 publications; the scrub is a separate path.

A new member is traced from its subscription until it has the 6,000 publications. In that time the
event loop also opens the log, dials, forms the ring and ticks; the last path has all of this. The
path of the backfill has the turns of the loop that handle an answer, a description or a page of a
log: from the bytes to the application, with the next requests. Other frames that arrive in the same
turn do not count, such as the end of a handshake. The first request is sent when a configuration
arrives, which belongs to the join.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Final, NamedTuple

import skipring
from skipring import Subscription

TOPIC: Final = "traced"
NODES: Final = 3  # besides the traced one
BACKFILL: Final = 6_000
SAMPLES: Final = 9  # Guess: enough for a majority that other messages of the ring do not affect.
PATIENCE_S: Final = 60.0  # Guess: a ring of four forms in seconds.
POLL_S: Final = 0.005
TICK_S: Final = 1.0  # the default of a node
PACKAGE: Final = f"{Path(skipring.__file__).parent}/"
COMPREHENSIONS: Final = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}


class TracedPath(NamedTuple):
    """Functions that one path calls, in order."""

    calls: tuple[CodeType, ...]

    @property
    def modules(self) -> list[str]:
        """Return the modules of the functions."""
        return sorted({module_of(code) for code in self.calls})

    @property
    def classes(self) -> list[str]:
        """Return the classes that define the functions."""
        owners = {class_of(code) for code in self.calls}
        return sorted(owner for owner in owners if owner)

    @property
    def functions(self) -> list[str]:
        """Return the qualified names of the functions."""
        return sorted({f"{module_of(code)}:{code.co_qualname}" for code in self.calls})


def module_of(code: CodeType) -> str:
    """Return the path of a function's module below the package."""
    return code.co_filename.removeprefix(PACKAGE)


def class_of(code: CodeType) -> str:
    """Return the class that defines a function, or an empty text."""
    return code.co_qualname.partition(".<locals>")[0].rpartition(".")[0]


def is_counted(code: CodeType) -> bool:
    """Return True for functions of skipring, but not for comprehensions and class bodies."""
    is_function = bool(code.co_flags & CO_OPTIMIZED) and code.co_name not in COMPREHENSIONS
    return is_function and code.co_filename.startswith(PACKAGE)


class Recorder:
    """Calls of skipring in this thread, in order."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        self.ticks: list[TracedPath] = []  # without their scrubs
        self.scrubs: list[TracedPath] = []
        self.turns: list[int] = []  # where the calls of each turn of the loop begin
        self.frames: list[tuple[int, int]] = []  # where the calls for each frame begin and end
        self._frame_start = 0
        self._depth = 0  # calls that have not returned
        self._tick_start = 0
        self._scrub_start = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the calls of a block."""
        self.calls, self.ticks, self.scrubs = [], [], []
        self.turns, self.frames, self._depth = [], [], 0
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the calls of a block that the tool itself makes."""
        sys.setprofile(None)
        yield
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and is_counted(code):
            self._on_call(code)
        elif event == "return" and is_counted(code):
            self._on_return(code)

    def _on_call(self, code: CodeType) -> None:
        match code.co_qualname:
            case "NodeHost._tick":
                self._tick_start = len(self.calls)
            case "AntiEntropy._scrub":
                self._scrub_start = len(self.calls)
            case "PeerConnection._on_frame":
                self._frame_start = len(self.calls)
        if self._depth == 0:
            self.turns.append(len(self.calls))
        self._depth += 1
        self.calls.append(code)

    def _on_return(self, code: CodeType) -> None:
        self._depth = max(self._depth - 1, 0)  # a call may have begun before the block
        end = len(self.calls)
        match code.co_qualname:
            case "NodeHost._tick":
                self.ticks.append(TracedPath(tuple(self.calls[self._tick_start : end])))
            case "AntiEntropy._scrub":
                self.scrubs.append(TracedPath(tuple(self.calls[self._scrub_start : end])))
                del self.calls[self._scrub_start :]
            case "PeerConnection._on_frame":
                self.frames.append((self._frame_start, end))

    def turns_with(self, name: str) -> TracedPath:
        """Return the calls of the turns of the loop that call a function, without other frames."""
        kept: list[CodeType | None] = [*self.calls]
        for start, end in self.frames:
            if all(code.co_qualname != name for code in self.calls[start:end]):
                kept[start:end] = [None] * (end - start)
        found = list[CodeType]()
        for start, end in zip(self.turns, [*self.turns[1:], len(kept)], strict=True):
            turn = [code for code in kept[start:end] if code is not None]
            found += turn if any(code.co_qualname == name for code in turn) else []
        return TracedPath(tuple(found))

    def until_written(self) -> TracedPath:
        """Return the calls until the last write to a connection."""
        end = self._last(len(self.calls), "net/connection.py", "write") + 1
        return TracedPath(tuple(self.calls[:end]))

    def since_received(self, end: int) -> TracedPath:
        """Return the calls from the arrival of the bytes that caused a delivery up to ``end``.

        Frames before it in the same bytes do not count, nor turns between it and the last one.
        """
        delivery = self._last(end, "api/", "deliver")
        start = self._last(delivery, "net/connection.py", "data_received")
        next_turn = min((turn for turn in self.turns if turn > delivery), default=end)
        last_turn = max(turn for turn in self.turns if turn < end)
        others = [range(*each) for each in self.frames if each[1] <= delivery]
        kept = (*range(start, next_turn), *range(max(last_turn, next_turn), end))
        return TracedPath(
            tuple(self.calls[at] for at in kept if not any(at in other for other in others))
        )

    def _last(self, end: int, module: str, name: str) -> int:
        """Return the last index before ``end`` of a call of a function."""
        return max(
            number
            for number, code in enumerate(self.calls[:end])
            if module_of(code).startswith(module) and code.co_name.endswith(name)
        )


# --- the other processes ---------------------------------------------------------------


async def start(*words: str) -> asyncio.subprocess.Process:
    """Start a command of skipring with a pipe for its output."""
    command = (sys.executable, "-m", "skipring", *words)
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=null)


async def publish_elsewhere(supervisor: str, lines: Sequence[str]) -> None:
    """Publish each line with a command, which chooses a member."""
    process = await start("pub", TOPIC, "--supervisor", supervisor)
    await process.communicate("".join(f"{line}\n" for line in lines).encode())
    if process.returncode:
        raise SystemExit(f"skipring pub ended with status {process.returncode}")


async def publish_history(supervisor: str) -> None:
    """Publish BACKFILL batches of one record as a member that leaves afterwards.

    A smaller number of batches would arrive by anti-entropy.
    """
    async with skipring.connect(supervisor, drain_s=0) as node, node.subscribe(TOPIC) as topic:
        await topic.synced(PATIENCE_S)
        for number in range(BACKFILL):
            await topic.publish(b"line %d" % number)
        await topic.synced(PATIENCE_S)


async def wait_in_sync(supervisor: str) -> None:
    """Wait until the other nodes are members and have all publications."""
    options = ("--wait", f"{PATIENCE_S:.0f}s", "--members", str(NODES))
    process = await start("doctor", TOPIC, "--supervisor", supervisor, *options)
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(output.decode())


@asynccontextmanager
async def other_processes(directory: Path) -> AsyncIterator[str]:
    """Run a supervisor and the other nodes; yield the address of the supervisor."""
    processes = [await start("supervisor", "--listen", "127.0.0.1:0")]
    try:
        assert processes[0].stdout is not None
        address = (await processes[0].stdout.readline()).decode().split()[-1]
        for number in range(NODES):
            name = f"node{number}"
            options = ("--topic", TOPIC, "--name", name, "--data", str(directory / name))
            processes.append(
                await start("node", "--supervisor", address, "--drain", "0s", *options)
            )
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
            await process.communicate()


# --- the paths -------------------------------------------------------------------------


async def trace_joining(
    recorder: Recorder, node: skipring.Connection, stack: AsyncExitStack
) -> tuple[dict[str, TracedPath], Subscription]:
    """Join a topic and trace until the node has its history."""
    with recorder.running():
        subscription = await stack.enter_async_context(node.subscribe(TOPIC))
        lag = 0
        while lag < BACKFILL:
            await asyncio.sleep(POLL_S)
            with recorder.paused():
                lag = subscription.lag
    paths = {
        f"backfill of {BACKFILL:,} publications": recorder.turns_with("BackfillClient.on_answer"),
        f"new member joins and reads {BACKFILL:,} publications": TracedPath(tuple(recorder.calls)),
    }
    return paths, subscription


async def trace_publish(recorder: Recorder, subscription: Subscription) -> TracedPath:
    """Trace publications of this node; return the usual path."""
    paths = []
    for number in range(SAMPLES):
        with recorder.running():
            await subscription.publish(b"own %d" % number)
        paths.append(recorder.until_written())
    return usual(paths)


async def trace_receive(
    recorder: Recorder, subscription: Subscription, supervisor: str
) -> TracedPath:
    """Trace publications of other members; return the usual path of the shorter half."""

    async def read() -> int:
        await anext(aiter(subscription))
        return len(recorder.calls)

    paths = list[TracedPath]()
    while len(paths) < SAMPLES:
        await subscription.read_available()
        with recorder.running():
            reading = asyncio.create_task(read())
            await publish_elsewhere(supervisor, ["received"])
            end = await reading
        if "PublishProxy" not in TracedPath(tuple(recorder.calls)).classes:
            paths.append(recorder.since_received(end))
    # On a busy machine some publications take longer paths.
    return usual(sorted(paths, key=lambda path: len(path.calls))[: SAMPLES // 2 + 1])


async def trace_tick(recorder: Recorder) -> tuple[TracedPath, TracedPath]:
    """Trace ticks of a quiet ring and their scrubs; return both paths."""
    with recorder.running():
        await asyncio.sleep(SAMPLES * TICK_S)
    return usual(recorder.ticks), usual(recorder.scrubs)


def usual(paths: Sequence[TracedPath]) -> TracedPath:
    """Return the median of the paths that have all functions of most paths, with only these."""
    passed = Counter(code for path in paths for code in set(path.calls))
    most = {code for code, count in passed.items() if 2 * count > len(paths)}
    complete = [path for path in paths if most <= set(path.calls)] or paths
    middle_calls = median_low(len(path.calls) for path in complete)
    found = next(path for path in complete if len(path.calls) == middle_calls)
    return TracedPath(tuple(code for code in found.calls if code in most))


async def trace() -> dict[str, TracedPath]:
    """Trace the paths in a new ring."""
    recorder = Recorder()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        supervisor = await stack.enter_async_context(other_processes(directory))
        await wait_in_sync(supervisor)
        await publish_history(supervisor)
        await wait_in_sync(supervisor)
        connection = skipring.connect(
            supervisor, data_dir=directory / "traced", tick_s=TICK_S, drain_s=0
        )
        node = await stack.enter_async_context(connection)
        joining, subscription = await trace_joining(recorder, node, stack)
        await subscription.synced(PATIENCE_S)
        tick, scrub = await trace_tick(recorder)
        return {
            "publish until the bytes leave": await trace_publish(recorder, subscription),
            "frame in until the application has it": await trace_receive(
                recorder, subscription, supervisor
            ),
            f"one tick, {NODES + 1} members": tick,
            "scrub of a tick": scrub,
            **joining,
        }


def table(paths: Mapping[str, TracedPath], *, with_names: bool) -> Iterator[str]:
    """Yield the lines of a Markdown table, and the names below it."""
    yield "| path | calls | modules | classes |"
    yield "|---|---|---|---|"
    for title, path in paths.items():
        counts = (len(path.calls), len(path.modules), len(path.classes))
        yield f"| {title} | {' | '.join(f'{count:,}' for count in counts)} |"
    if with_names:
        for title, path in paths.items():
            yield f"\n{title}"
            yield f"  modules: {' '.join(path.modules)}"
            yield f"  classes: {' '.join(path.classes)}"
            yield from (f"  {name}" for name in path.functions)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--names", action="store_true", help="print the names, too")
    names = parser.parse_args().names
    sys.stdout.writelines(f"{line}\n" for line in table(asyncio.run(trace()), with_names=names))


if __name__ == "__main__":
    main()
