"""The errors skipring raises, as one tree.

SkipringError
└── InputError              something the user gave us is not of the form we accept
    ├── WorldFormatError    a world file
    └── ScenarioError       a scenario file
"""

from __future__ import annotations


class SkipringError(Exception):
    """Root of every error that skipring raises on purpose."""


class InputError(SkipringError):
    """The user's input cannot be used; the message says where and why."""


class WorldFormatError(InputError):
    """A world file is not of the form ``skipring-world/1``."""


class ScenarioError(InputError):
    """A scenario names something we do not know, or gives it a value we cannot use."""
