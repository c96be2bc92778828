"""Adversaries: initial states of a topic, from slightly wrong to arbitrary.

Each is a function of the number of subscribers and a ``Random``, for every n >= 1. A construction
that needs more nodes shrinks, if necessary to a legitimate state.
"""

from skipring.world.adversaries.builders import legitimate_world, scatter
from skipring.world.adversaries.catalog import ADVERSARIES, Adversary

__all__ = ["ADVERSARIES", "Adversary", "legitimate_world", "scatter"]
