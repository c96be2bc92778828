"""Node that hands its history over in pages of one publication, one every two ticks (P6).

Arguments: those of ``skipring``. The program patches the answers of the node, then starts it.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from typing import Final

from skipring.core.peers import NodeId, TopicId
from skipring.node import log_server as offering
from skipring.node.sender import Sender
from skipring.wire.rpc import LogPage, RuntimeMessage

DELAY_S: Final = 0.5  # two ticks

_send = Sender.send_message


def send_late(sender: Sender, topic: TopicId, to: NodeId, message: RuntimeMessage) -> None:
    """Send pages of the history late, other messages at once."""
    if isinstance(message, LogPage):
        asyncio.get_running_loop().call_later(DELAY_S, _send, sender, topic, to, message)
    else:
        _send(sender, topic, to, message)


if __name__ == "__main__":
    setattr(offering, "PAGE_ROWS_MAX", 1)  # noqa: B010  (a constant, for everyone else)
    setattr(Sender, "send_message", send_late)  # noqa: B010
    sys.argv = ["skipring", *sys.argv[1:]]
    runpy.run_module("skipring", run_name="__main__")
