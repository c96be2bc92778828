"""The story as one value for a program: how each chapter ended, and how the nodes stand."""

from __future__ import annotations

from typing import Any

from msgspec import json

from skipring.lab.demo.story import Analysis, End, Opening, Scene, Scoreboard, StepResult


class Score:
    """What a program wants to know of the story."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {"chapters": [], "nodes": [], "analysis": None}

    def note(self, scene: Scene) -> None:
        """Take down what a scene says."""
        match scene:
            case Opening(plan=plan):
                self._found |= {"n": plan.n, "seed": plan.seed, "tick_s": plan.tick_s}
            case StepResult():
                self._found["chapters"].append(_chapter(scene))
            case Scoreboard():
                self._found["nodes"] = [
                    _node(scene, place) for place in range(len(scene.standings))
                ]
                self._found["roots"] = sorted(scene.roots)
            case Analysis():
                self._found["analysis"] = _analysis(scene)
            case End():
                self._found |= {"good": scene.is_good, "faults": scene.faults}

    def as_json(self) -> str:
        """All of it in one line."""
        return json.encode(self._found, order="sorted").decode()


def _chapter(outcome: StepResult) -> dict[str, Any]:
    return {
        "number": outcome.chapter.number,
        "title": outcome.chapter.title,
        "good": outcome.is_good,
        "seconds": round(outcome.seconds, 3),
        "rounds": outcome.rounds,
        "members": outcome.members,
        "published": outcome.published,
        "lost": outcome.lost,
        "faults": outcome.faults,
    }


def _node(board: Scoreboard, place: int) -> dict[str, Any]:
    it = board.standings[place]
    return {
        "node": it.node,
        "pid": board.pids.get(it.node),
        "label": it.label,
        "stored": it.stored,
        "root": it.root,
    }


def _analysis(analysis: Analysis) -> dict[str, Any]:
    return {
        "report": str(analysis.report) if analysis.report is not None else None,
        "seconds": round(analysis.seconds, 3),
        "rows": dict(analysis.rows),
        "skipped": analysis.skipped,
        "fault": analysis.fault,
    }
