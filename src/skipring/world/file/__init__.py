"""The world file ``skipring-world/1``: the state of a topic as JSON.

``document`` turns text into a tree, ``values`` the leaves of the tree into values of the core,
``publications`` those that make up what was published, ``messages`` holds the table of messages,
``reading`` and ``writing`` do the rest.
"""

from __future__ import annotations

from skipring.world.file.reading import parse_world
from skipring.world.file.writing import render_world

__all__ = ["parse_world", "render_world"]
