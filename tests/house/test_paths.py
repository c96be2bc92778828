"""Paths through a node: how many modules and classes a publication passes; bounds only fall."""

from __future__ import annotations

import asyncio

import pytest

from skipring.api.ordered_reader import OrderedReader
from skipring.api.subscription import Subscription
from skipring.net.connection import PeerConnection
from skipring.node.host import NodeHost
from skipring.wire.framing import frame
from tests.support.ratchet import check
from tests.support.source_tree import ROOT
from tools.trace_paths import Recorder, TracedPath, is_counted, table, trace, usual

BOUNDS = ROOT / "tests" / "house" / "path_bounds.toml"
FUNCTIONS = (NodeHost.dispatch, NodeHost.subscribe, frame)
PATH = TracedPath(tuple(function.__code__ for function in FUNCTIONS))


TRACES = 4  # On a busy machine, frames and timers of others can fall into a traced turn.


@pytest.mark.heavy
def test_paths_pass_few_modules_and_classes() -> None:
    wrong, shown = ["no trace"], ""
    for _ in range(TRACES):
        paths = asyncio.run(trace())
        modules = {title: len(path.modules) for title, path in paths.items()}
        classes = {title: len(path.classes) for title, path in paths.items()}
        wrong = check(BOUNDS, "modules", modules, exact=False)
        wrong += check(BOUNDS, "classes", classes, exact=False)
        shown = "\n".join([*wrong, *table(paths, with_names=True)])
        if not wrong:
            break
    assert wrong == [], shown


def test_modules_and_classes_of_a_path_count_once() -> None:
    assert PATH.modules == ["node/host.py", "wire/framing.py"]
    assert PATH.classes == ["NodeHost"]
    assert list(table({"publish": PATH}, with_names=False))[-1] == "| publish | 3 | 2 | 1 |"


def test_path_of_a_turn_leaves_out_other_frames_and_other_turns() -> None:
    recorder = Recorder()
    frame_in, one, other = (function.__code__ for function in FUNCTIONS)
    recorder.calls = [frame_in, one, frame_in, other, frame_in, other]
    recorder.turns, recorder.frames = [0, 4], [(0, 2), (2, 4)]
    assert recorder.turns_with(one.co_qualname).calls == (frame_in, one)
    assert recorder.turns_with(other.co_qualname).calls == (frame_in, other, frame_in, other)


def test_path_of_a_delivery_leaves_out_other_frames_and_turns() -> None:
    received = PeerConnection.data_received.__code__
    delivered, read = OrderedReader.on_deliver.__code__, Subscription.read_many.__code__
    other = frame.__code__
    recorder = Recorder()
    recorder.calls = [received, other, delivered, other, read]
    recorder.turns, recorder.frames = [0, 3, 4], [(1, 2)]
    assert recorder.since_received(5).calls == (received, delivered, read)


def test_usual_path_leaves_out_functions_that_few_samples_call() -> None:
    dispatch, subscribe, other = (function.__code__ for function in FUNCTIONS)
    usually, rarely = (dispatch, subscribe, dispatch), (dispatch, other, subscribe, dispatch)
    incomplete = (dispatch,)
    for samples in ([rarely, usually, usually, incomplete], [rarely, usually, incomplete]):
        assert usual([TracedPath(calls) for calls in samples]) == TracedPath(usually)


def test_only_functions_of_skipring_count() -> None:
    bodies = [code for code in is_counted.__code__.co_consts if hasattr(code, "co_flags")]
    module = compile("x = [y for y in ()]", NodeHost.dispatch.__code__.co_filename, "exec")
    assert not any(is_counted(code) for code in [*bodies, module, is_counted.__code__])
    assert is_counted(NodeHost.dispatch.__code__)
