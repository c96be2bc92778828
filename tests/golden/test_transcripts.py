"""Conversations, compared word for word with the transcripts in this directory."""

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.golden.stage import COMMANDS, DASHES, played

HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*.txt"))


def difference(before: str, now: str) -> str:
    lines = unified_diff(before.splitlines(), now.splitlines(), "written down", "now", lineterm="")
    return "\n".join(lines)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_conversation_equals_its_transcript(path: Path, is_rewriting: bool) -> None:
    before = path.read_text(encoding="utf-8")
    now = played(before)
    if is_rewriting:
        path.write_text(now, encoding="utf-8")
    else:
        assert now == before, f"if this is meant, run `make golden`\n{difference(before, now)}"


def test_changed_word_is_reported_as_a_difference() -> None:
    written = "mode paper\nsubscribe a\ndeliver\n----\na -> supervisor  Subscribe b\n"
    shown = difference(written, played(written)).splitlines()
    assert "-a -> supervisor  Subscribe b" in shown
    assert "+a -> supervisor  Subscribe a" in shown


def test_remarks_and_commands_stay_when_a_transcript_is_rewritten() -> None:
    bare = "# Why\nmode paper\n\nsubscribe a  # first\n"
    now = played(bare)
    assert now.startswith("# Why\nmode paper\n\nsubscribe a  # first\n----\n")
    assert played(now) == now


def test_every_command_occurs_in_a_transcript() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in TRANSCRIPTS)
    blocks = text.split("\n\n")
    commands = [line for block in blocks for line in block.partition(DASHES)[0].splitlines()]
    assert {line.split()[0] for line in commands if line[0] != "#"} == set(COMMANDS)
