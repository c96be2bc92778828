"""World file ``skipring-world/1``: the state of a topic as JSON."""

from __future__ import annotations

from skipring.world.format.parse import parse_world
from skipring.world.format.render import render_world

__all__ = ["parse_world", "render_world"]
