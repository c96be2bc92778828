"""The catalogue of adversarial starting states: how wrong a topic can be when it starts.

Each is a function of the number of subscribers and of a ``Random``, and works for every n >= 1;
where a construction needs more nodes than there are, it shrinks, if need be to a legitimate
state.
"""

from skipring.world.adversaries.builders import legitimate_world, scatter
from skipring.world.adversaries.catalog import ADVERSARIES, Adversary

__all__ = ["ADVERSARIES", "Adversary", "legitimate_world", "scatter"]
