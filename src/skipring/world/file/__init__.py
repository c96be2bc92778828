"""World file ``skipring-world/1``: the state of a topic as JSON.

``document`` parses text to a tree, ``values`` and ``publications`` parse the leaves of the tree,
``messages`` has the table of messages, ``reading`` and ``writing`` convert whole snapshots.
"""

from __future__ import annotations

from skipring.world.file.reading import parse_world
from skipring.world.file.writing import render_world

__all__ = ["parse_world", "render_world"]
